#include "teratron/cli/ckpt/ckpt_megatron.h"

#include <chrono>
#include <filesystem>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/cli/ckpt/tensor_list.h"
#include "teratron/megatron/checkpoint.h"
#include "teratron/megatron/export/export.h"
#include "teratron/megatron/structure.h"
#include "teratron/settings/arguments.h"
#include "teratron/settings/component_options.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {

namespace fs = std::filesystem;
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
int64_t tokenizer_size(Arguments args, bool has_type, const std::string& usual_type, json& settings) {
  if (!args.vocab_file && !args.tokenizer_model) return 0;
  if (!has_type) args.tokenizer_type = usual_type;
  settings["tokenizer_type"] = *args.tokenizer_type;
  for (const char* name : {"vocab_file", "merge_file", "tokenizer_model"}) {
    if (settings.contains(name) && settings[name].is_string())
      settings[name] =
          std::filesystem::absolute(settings[name].get<std::string>()).lexically_normal().string();
  }
  return build_tokenizer(tokenizer_options(args))->vocab_size();
}

std::optional<MegatronNames> megatron_names(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name == "v2") return MegatronNames::legacy_v2;
  if (name == "mcore") return MegatronNames::core;
  return name == "mcore-te" ? MegatronNames::core_te : MegatronNames::legacy_core;
}

}  // namespace

std::unique_ptr<ImportedMegatron> open_megatron(const MegatronFlags& flags) {
  const ParsedArguments parsed = parse_arguments(Program(), flags.settings, {.refuse_planned = false});
  json given = given_settings(parsed);
  given.erase("no_load_optim");
  const auto vocabulary = [&](const std::string& type, json& settings) {
    return tokenizer_size(parsed.args, given.contains("tokenizer_type"), type, settings);
  };
  return import_megatron({.source = flags.source,
                          .step = flags.step,
                          .optimizer = flags.optimizer && !parsed.args.no_load_optim,
                          .dtype = flags.dtype,
                          .settings = given,
                          .vocabulary = vocabulary});
}

void print_megatron_structure(const fs::path& source, std::optional<int64_t> step) {
  open_megatron_checkpoint(source, step, false)->print_structure([](const std::string& line) {
    print("{}", line);
  });
}

void inspect_megatron(const fs::path& source, std::optional<int64_t> step, bool list_tensors) {
  const auto checkpoint = open_megatron_checkpoint(source, step, true);
  const MegatronSource model = checkpoint->source();
  const json state = checkpoint->state();
  int64_t elements = 0;
  for (const auto& [name, shape] : model.shapes) elements += shape[0] * (shape.size() > 1 ? shape[1] : 1);
  print("checkpoint    {}", model.where);
  print("format        Megatron-LM, {}", checkpoint->format());
  print("iteration     {}", state.value("iteration", int64_t{0}));
  print("weights       {} elements in {} tensors, with the padding of the vocabulary", elements,
        model.shapes.size());
  print("optimizer     {}", checkpoint->has_optimizer() ? "moments of all weights" : "none that is read");
  std::vector<ListedTensor> tensors;
  for (const auto& [name, shape] : model.shapes)
    tensors.push_back({name, fmt::format("[{}]", fmt::join(shape, ", "))});
  print("tensors");
  for (const std::string& line : tensor_lines(tensors, list_tensors)) print_line(line);
  print("args          {}", model.args == nullptr ? "none" : plain_json(*model.args).dump(2));
  print("state         {}", state.dump(2));
  for (const std::string& line : checkpoint->notices()) notice_line(line);
  print("use it with --load {0}, or convert it with 'teratron ckpt convert --from-megatron {0} --save DIR'",
        printable(source.string(), 4096));
}

void verify_megatron(const fs::path& source, std::optional<int64_t> step) {
  const auto start = std::chrono::steady_clock::now();
  const auto checkpoint = open_megatron_checkpoint(source, step, true);
  const int64_t bytes = checkpoint->verify();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const std::string where = checkpoint->source().where;
  if (bytes == 0) return print("{}: complete; files of this format have no checksums", where);
  print("{}: all checksums match ({} bytes, {:.2f} s)", where, bytes, seconds.count());
}

std::vector<Field> MegatronLayoutFlags::fields() {
  constexpr double most = 1 << 10;
  return {
      bound_field(
          "to_megatron", &to_megatron,
          "Destination: new folder for Megatron-LM's files: weights and, where there is one, the state "
          "of the training (Adam)"),
      bound_field("megatron_format", &format, "Format of --to-megatron", {.choices = "torch|torch_dist"}),
      bound_field("no_save_optim", &weights_only, "Write weights alone to --to-megatron"),
      bound_field(
          "use_distributed_optimizer", &distributed_optimizer,
          "Write Adam's state as the distributed optimizer of 22.x to 23.06 saves it, in a file of each "
          "data-parallel rank"),
      bound_field("target_data_parallel_size", &data_ranks,
                  "Data-parallel ranks of --use-distributed-optimizer; default 1", {.min = 1, .max = most}),
      bound_field("target_tensor_parallel_size", &tensor_ranks, "Tensor ranks of --to-megatron; default 1",
                  {.min = 1, .max = most, .aliases = "--target-tensor-model-parallel-size"}),
      bound_field("target_pipeline_parallel_size", &stages, "Pipeline stages of --to-megatron; default 1",
                  {.min = 1, .max = most, .aliases = "--target-pipeline-model-parallel-size"}),
      bound_field("target_expert_parallel_size", &expert_ranks, "Expert ranks of --to-megatron; default 1",
                  {.min = 1, .max = most, .aliases = "--target-expert-model-parallel-size"}),
      bound_field("make_vocab_size_divisible_by", &vocabulary_divisor,
                  "Padding of the vocabulary of --to-megatron; default: as in the checkpoint",
                  {.min = 1, .max = 1 << 20}),
      bound_field("megatron_names", &names,
                  "Names of tensors in --to-megatron: of legacy models in core 0.4 to 0.7 (core) or v2.5 to "
                  "23.06 (v2); of GPT in Megatron-Core (mcore), with Transformer Engine's layers and grouped "
                  "experts (mcore-te); default core, of models with experts mcore",
                  {.choices = "core|v2|mcore|mcore-te"})};
}

std::vector<std::string> MegatronLayoutFlags::given() const {
  std::vector<std::string> flags;
  if (tensor_ranks) flags.emplace_back("--target-tensor-model-parallel-size");
  if (stages) flags.emplace_back("--target-pipeline-model-parallel-size");
  if (expert_ranks) flags.emplace_back("--target-expert-model-parallel-size");
  if (data_ranks) flags.emplace_back("--target-data-parallel-size");
  if (distributed_optimizer) flags.emplace_back("--use-distributed-optimizer");
  if (vocabulary_divisor) flags.emplace_back("--make-vocab-size-divisible-by");
  return flags;
}

ConversionReport convert_to_megatron(const CheckpointSource& checkpoint, const MegatronLayoutFlags& flags,
                                     std::optional<Dtype> dtype) {
  std::optional<int64_t> optimizer_ranks;
  if (flags.distributed_optimizer) optimizer_ranks = flags.data_ranks.value_or(1);
  return export_megatron(checkpoint, {.destination = flags.to_megatron,
                                      .format = flags.format == "torch_dist" ? MegatronFormat::torch_dist
                                                                             : MegatronFormat::torch,
                                      .tensor_ranks = flags.tensor_ranks.value_or(1),
                                      .stages = flags.stages.value_or(1),
                                      .expert_ranks = flags.expert_ranks.value_or(1),
                                      .optimizer_ranks = optimizer_ranks,
                                      .optimizer = !flags.weights_only,
                                      .dtype = dtype,
                                      .make_vocab_size_divisible_by = flags.vocabulary_divisor,
                                      .names = megatron_names(flags.names)});
}

}  // namespace teratron
