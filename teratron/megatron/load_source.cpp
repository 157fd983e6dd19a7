#include "teratron/megatron/load_source.h"

#include <filesystem>
#include <system_error>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/comm/collective_errors.h"
#include "teratron/megatron/checkpoint_format.h"
#include "teratron/settings/component_options.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {

using nlohmann::json;

namespace {

MegatronImport request_for(const LoadSource& source) {
  MegatronImport request{.source = source.path, .step = source.step, .optimizer = source.optimizer};
  request.saved_vocabulary_first = true;
  return request;
}

// A missing file is a typing error; a missing folder may be that of a run which has not begun.
bool is_of_megatron(const std::filesystem::path& path) {
  std::error_code ignored;
  const bool names_file = path.extension() == ".zip" || path.extension() == ".pt";
  if (names_file && !std::filesystem::exists(path, ignored))
    throw checkpoint_error({.what = "there is no such file",
                            .where = printable(path.string(), 4096),
                            .fix = "Name a checkpoint of Megatron-LM: a folder, a zip file or a .pt file"});
  return recognized_format(path) == CheckpointFormat::megatron;
}

void print_notices(const ImportedMegatron& checkpoint) {
  notice("{} is a checkpoint of Megatron-LM ({}), read as it is",
         printable(checkpoint.info().path.string(), 4096), checkpoint.format());
  for (const std::string& line : checkpoint.notices()) notice_line(line);
}

}  // namespace

MegatronImport import_for(const LoadSource& source, const ParsedArguments& parsed) {
  MegatronImport request = request_for(source);
  const json all = json::parse(to_json(parsed.args));
  for (const auto& [name, given_by] : parsed.sources) {
    const Schema::Target* const target = arguments_schema().find(name);  // null: the family's
    if (!target || !target->field || !is_users(given_by)) continue;
    if (target->field->model || name == "seq_length" || name == "vocab_size")
      request.otherwise[name] = all.at(name);
  }
  // A NullTokenizer has one token more than its vocab_size says.
  const bool counts = parsed.args.tokenizer_type == "NullTokenizer" && parsed.args.vocab_size;
  if (counts) request.otherwise.erase("vocab_size");
  request.vocabulary = [args = parsed.args, counts](const std::string& type, json& settings) {
    if (!args.vocab_file && !args.tokenizer_model && !counts) return int64_t{0};
    Arguments with_type = args;
    if (!args.tokenizer_type) with_type.tokenizer_type = type;
    settings["tokenizer_type"] = *with_type.tokenizer_type;
    const int64_t size = build_tokenizer(tokenizer_options(with_type))->vocab_size();
    settings["tokenizer_vocab_size"] = size;
    return size;
  };
  return request;
}

MegatronImport import_for(const LoadSource& source, const std::string& config) {
  MegatronImport request = request_for(source);
  const json settings = json::parse(config);
  for (const std::string& name : model_fields()) {
    if (settings.contains(name) && !settings[name].is_null()) request.otherwise[name] = settings[name];
  }
  request.otherwise["vocab_size"] = settings.value("tokenizer_vocab_size", int64_t{0});
  return request;
}

std::unique_ptr<ImportedMegatron> open_megatron_source(const MegatronImport& request, HostGroup& ranks) {
  const std::string found =
      run_on_rank_0(ranks, [&] { return is_of_megatron(request.source) ? "megatron" : ""; });
  if (found.empty()) return nullptr;
  std::unique_ptr<ImportedMegatron> opened;
  run_on_all_ranks(ranks, [&] { opened = import_megatron(request); });
  if (ranks.rank() == 0) print_notices(*opened);
  return opened;
}

std::optional<SavedSettings> read_megatron_settings(const LoadSource& source, const ParsedArguments& parsed) {
  if (!is_of_megatron(source.path)) return std::nullopt;
  const auto opened = import_megatron(import_for(source, parsed));
  if (opened->has_assumed_heads()) notice_line(assumed_heads);
  return SavedSettings{source.path, opened->info().config};
}

}  // namespace teratron
