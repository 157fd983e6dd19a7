#include "teratron/cli/ckpt_megatron.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/megatron/convert.h"
#include "teratron/settings/arguments.h"
#include "teratron/settings/component_options.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

using nlohmann::json;

namespace {

// The values of the flags that the user gave, by setting.
json given_settings(const ParsedArguments& parsed) {
  const json all = json::parse(to_json(parsed.args));
  json given = json::object();
  for (const auto& [name, source] : parsed.sources) {
    if (is_users(source)) given[name] = all.at(name);
  }
  return given;
}

// The size of the tokenizer that the flags name, which is noted in the settings; 0 if they name none.
int64_t tokenizer_size(Arguments args, bool has_type, const std::string& family,
                       const std::string& saved_type, json& settings) {
  if (!args.vocab_file && !args.tokenizer_model) return 0;
  if (!has_type) {
    const char* const usual = family == "gpt" ? "GPT2BPETokenizer" : "BertWordPieceLowerCase";
    args.tokenizer_type = saved_type.empty() ? usual : saved_type;
  }
  settings["tokenizer_type"] = *args.tokenizer_type;
  for (const char* name : {"vocab_file", "merge_file", "tokenizer_model"}) {
    if (settings.contains(name) && settings[name].is_string())
      settings[name] =
          std::filesystem::absolute(settings[name].get<std::string>()).lexically_normal().string();
  }
  return build_tokenizer(tokenizer_options(args))->vocab_size();
}

}  // namespace

ConversionReport convert_from_megatron(const MegatronFlags& flags) {
  const ParsedArguments parsed =
      parse_arguments("pretrain gpt", flags.settings, {.refuse_planned = false, .defer_problems = true});
  if (!parsed.problems.empty()) throw UserError(ExitCode::config, parsed.problems);
  const json given = given_settings(parsed);
  const auto vocabulary = [&](const std::string& family, const std::string& saved_type, json& settings) {
    return tokenizer_size(parsed.args, given.contains("tokenizer_type"), family, saved_type, settings);
  };
  return import_megatron({.source = flags.source,
                          .step = flags.step,
                          .destination = flags.save,
                          .dtype = flags.dtype,
                          .settings = given,
                          .vocabulary = vocabulary});
}

}  // namespace teratron
