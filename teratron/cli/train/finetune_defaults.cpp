#include "teratron/cli/train/finetune_defaults.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "teratron/base/config/python_json.h"
#include "teratron/base/file.h"
#include "teratron/base/json.h"
#include "teratron/cli/train/finetune_data.h"
#include "teratron/cli/training_arguments.h"
#include "teratron/device/device.h"
#include "teratron/hf/hf_checkpoint.h"

namespace teratron {

namespace {

namespace fs = std::filesystem;

// Tokens of a row by default, if the model has as many positions.
int64_t longest_row(std::string_view family) {
  return family == "gpt" || family == "mamba" || family == "vlm" ? 2048 : 512;
}

std::string hf_folder(std::span<const std::string> args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].starts_with("--hf=")) return args[i].substr(5);
    if (args[i] == "--hf" && i + 1 < args.size()) return args[i + 1];
  }
  return "";
}

// The positions of the model; 0 if its config.json does not say.
int64_t positions_of(const std::string& folder) {
  const fs::path path = fs::path(folder) / "config.json";
  const nlohmann::json config = parse_json(without_bare_infinity(read_text(path, {.kind = ExitCode::config})),
                                           {.where = path.string()});
  const nlohmann::json text =
      config.is_object() ? config.value("text_config", nlohmann::json()) : nlohmann::json();
  for (const nlohmann::json* const part : {&config, &text}) {  // with images: the language model's
    for (const char* const name : {"max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"}) {
      if (part->is_object() && part->value(name, nlohmann::json()).is_number_integer())
        return part->at(name).get<int64_t>();
    }
  }
  return 0;
}

// A new folder beside the working directory's others.
std::string output_folder(const std::string& hf, const char* suffix) {
  const fs::path folder = fs::absolute(hf).lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string() + suffix;
}

class Defaults {
 public:
  Defaults(const ParsedArguments& given, std::string folder, const Family& family)
      : given_(given), folder_(std::move(folder)), family_(family) {}

  std::vector<std::string> run() {
    if (!has_any({"train_iters", "train_samples", "num_train_epochs"})) add("--num-train-epochs", "3");
    if (!has_any({"global_batch_size", "num_micro_batches"})) add("--global-batch-size", "16");
    if (!has_any({"micro_batch_size"})) add("--micro-batch-size", "1");
    const bool adapters = has_any({"lora_rank", "lora"});
    if (!has_any({"lr"})) add("--lr", adapters ? "2e-4" : "1e-5");
    if (!has_any({"lr_decay_style"})) add("--lr-decay-style", "cosine");
    if (!has_any({"lr_warmup_fraction", "lr_warmup_iters", "lr_warmup_samples"}))
      add("--lr-warmup-fraction", "0.03");
    if (!has_any({"bf16", "fp16", "fp8_format"}) && given_.args.device != "cpu" && gpu_count() > 0)
      words_.emplace_back("--bf16");
    add_data_flags();
    if (!has_any({"log_interval", "log_lines"})) add("--log-lines", "20");
    if (!has_any({"save", "hf_out", "lora_out"})) {
      const bool only_adapters = adapters && given_.args.lora_rank.has_value();
      add(only_adapters ? "--lora-out" : "--hf-out",
          output_folder(folder_, only_adapters ? "-adapters" : "-finetuned"));
    }
    return words_;
  }

 private:
  void add_data_flags() {
    const int64_t positions = positions_of(folder_), longest = longest_row(family_.name);
    const std::string row = std::to_string(positions > 0 ? std::min(positions, longest) : longest);
    const bool has_decoder = family_.name == "t5", has_length = has_any({"seq_length", "encoder_seq_length"});
    if (!has_length) add("--seq-length", row);
    if (has_decoder && !has_any({"decoder_seq_length"})) add("--decoder-seq-length", row);
    if (!has_length && family_.learns_conversations && !has_any({"sft_overlong"}))
      add("--sft-overlong", "truncate");
    if (!has_any({"split", "valid_data_path", "train_data_path", "train_data", "valid_data"}))
      add("--split", "100,0,0");
    if (!has_any({"eval_iters", "valid_data_path", "valid_data", "split"})) add("--eval-iters", "0");
  }

  // Whether the user set one of them; the settings of the folder do not count.
  bool has_any(std::initializer_list<const char*> names) const {
    return std::ranges::any_of(names, [&](const char* name) {
      const auto found = given_.sources.find(name);
      return found != given_.sources.end() && found->second.find("config.json") == std::string::npos;
    });
  }

  void add(const char* flag, const std::string& value) {
    words_.emplace_back(flag);
    words_.push_back(value);
  }

  const ParsedArguments& given_;
  std::string folder_;
  const Family& family_;
  std::vector<std::string> words_;
};

}  // namespace

HfModel model_of_hf_flag(std::span<const std::string> args) {
  const std::string folder = hf_folder(args);
  if (folder.empty()) {
    throw config_error({.what = "there is no model to finetune",
                        .where = "finetune",
                        .fix = "Give its Hugging Face folder: teratron finetune --hf DIR --data-path FILE"});
  }
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw config_error({.what = fmt::format("hf = '{}' is not a folder", printable(folder)),
                        .where = "--hf",
                        .fix = "Give a local folder with config.json, the tokenizer's files and the weights; "
                               "`hf download NAME --local-dir DIR` fetches a published one"});
  }
  return read_hf_model(folder);
}

std::vector<std::string> finetune_defaults(std::span<const std::string> args, const JobModel& model) {
  return Defaults(flag_arguments(args, model), hf_folder(args), model.family).run();
}

BatchRows rows_of_batch(const Arguments& args, const Family& family, int64_t ranks) {
  constexpr double examples = 16, bytes_of_token = 4, tokens_of_template = 8;
  BatchRows batch;
  const bool packs = family.learns_conversations && family.name != "t5" && args.sft_packing == "best-fit";
  const std::optional<double> bytes = packs ? bytes_per_example(args) : std::nullopt;
  if (bytes && args.seq_length) {
    const double tokens = *bytes / bytes_of_token + tokens_of_template;
    batch.examples_in_row = std::max(1.0, static_cast<double>(*args.seq_length) / tokens);
    batch.rows = static_cast<int64_t>(std::ceil(examples / batch.examples_in_row));
  }
  const int64_t replica =
      args.tensor_model_parallel_size * args.pipeline_model_parallel_size * args.context_parallel_size;
  const int64_t divisor =
      std::max<int64_t>(1, ranks / std::max<int64_t>(1, replica)) * args.micro_batch_size.value_or(1);
  batch.rows = (batch.rows + divisor - 1) / divisor * divisor;
  return batch;
}

std::string finetune_page() {
  return R"(usage: teratron finetune --hf DIR --data-path FILE [FLAGS]
       teratron finetune gpt FLAGS...
       teratron finetune bert|gpt --task classification|regression FLAGS...

The first form finetunes a Hugging Face model with the defaults below, which it prints. The others,
also of t5, bert and mamba, have the defaults of `teratron pretrain`; --task trains a head on
labelled texts.

FILE has a JSON object per line, or is a JSON array of them:
  {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
  {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
  {"instruction": "...", "input": "...", "output": "..."}
  {"prompt": "...", "completion": "..."}          {"text": "..."}
A T5 learns the answers. A BERT learns masked words of {"text": "..."}, or a head for the labels of
{"text": "...", "label": 1}: classes from 0, else numbers.

flags of the first form:
  --hf DIR                    model, tokenizer and chat template
  --data-path FILE...         conversations to learn
  --valid-data-path FILE...   conversations to evaluate, with --eval-interval N
  --num-train-epochs N        epochs [3]
  --global-batch-size N       rows per step [as many as hold about 16 examples]
  --micro-batch-size N        rows per forward pass [1]
  --seq-length N              tokens in a row; longer ones are cut [at most 2048, BERT and T5 512]
  --lr X                      learning rate [1e-5, of adapters 2e-4]
  --lora-rank N               train adapters of this rank
  --hf-out DIR                write the model here [NAME-finetuned]
  --lora-out DIR              write adapters here [NAME-adapters]
  --save DIR                  checkpoints, from which the same command goes on
  --chat-template FILE|NAME   instead of the model's
  --log-lines N               log lines in the training [20]
  --device auto|cpu|cuda      [auto]

example:
  teratron finetune --hf Qwen2.5-0.5B --data-path alpaca.json --lora-rank 16

All flags: teratron finetune gpt --help-all,
teratron finetune bert --task classification --help-all)";
}

}  // namespace teratron
