#include "teratron/train/run_info.h"

#include <chrono>
#include <filesystem>

#include <fmt/ranges.h>

#include "teratron/base/environment.h"
#include "teratron/base/strings.h"
#include "teratron/device/device.h"
#include "teratron/plan/rank_memory.h"
#include "teratron/settings/component_options.h"
#include "teratron/train/setup_lines.h"

namespace teratron {

namespace {

std::string precision_name(const Arguments& args) {
  if (args.fp8) return fmt::format("bf16, products in FP8 ({}, {})", *args.fp8, args.fp8_recipe);
  if (args.bf16) return "bf16";
  return args.fp16 ? "fp16" : "fp32";
}

std::vector<std::pair<std::string, std::string>> argument_texts(const Arguments& args) {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const Field& field : arguments_schema().fields()) {
    texts.emplace_back(field.name, shown_value(field, &args));
  }
  return texts;
}

std::string layout_name(const Arguments& args) {
  const int64_t cp = args.context_parallel_size;
  return fmt::format("tensor {} x pipeline {}{} x data {}", args.tensor_model_parallel_size,
                     args.pipeline_model_parallel_size, cp > 1 ? fmt::format(" x context {}", cp) : "",
                     args.data_parallel_size.value());
}

}  // namespace

MathMode math_mode(const Arguments& args) {
  if (args.fp8) return MathMode::fp8;
  return args.bf16 || args.fp16 ? MathMode::half : MathMode::fp32;
}

namespace {

std::string name_of_run(const Arguments& args) {
  if (args.wandb_exp_name) return *args.wandb_exp_name;
  std::filesystem::path folder = run_directory(args);
  if (!folder.has_filename()) folder = folder.parent_path();
  return folder.filename().string();
}

std::string joined_words(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

std::string data_of(const Arguments& args) {
  if (args.mock_data) return "mock data";
  for (const std::vector<std::string>* const files :
       {&args.data_path, &args.train_data_path, &args.train_data, &args.valid_data_path}) {
    if (!files->empty()) return joined_words(*files);
  }
  return args.data_args_path.value_or(args.per_split_data_args_path.value_or(""));
}

std::string tokenizer_of(const Arguments& args) {
  std::string text = args.tokenizer_type.value_or("");
  for (const auto* const file : {&args.tokenizer_model, &args.vocab_file}) {
    if (*file) text += fmt::format(", {}", **file);
  }
  return text;
}

RunInfo::Rows facts_of(const Trainer& trainer, const std::string& device) {
  const Arguments& args = trainer.args();
  RunInfo::Rows facts = {
      {"name", name_of_run(args)},
      {"model", trainer.model().summary},
      {"parameters", fmt::format("{}", total_parameters(trainer.model()))},
      {"parameters on a rank", fmt::format("{}", trainer.engine().parameters().numel())},
      {"data", data_of(args)},
      {"tokenizer", tokenizer_of(args)},
      {"sequence length", fmt::format("{}", args.seq_length.value())},
      {"batch", fmt::format("{} samples, micro-batches of {}", args.global_batch_size.value(),
                            args.micro_batch_size.value())},
      {"precision", precision_name(args)},
      {"layout", layout_name(args)},
      {"device", device},
      {"host", host_name()},
      {"command", command_line_of_process()},
      {"seed", fmt::format("{}", args.seed)}};
  std::erase_if(facts, [](const auto& fact) { return fact.second.empty(); });
  return facts;
}

}  // namespace

RunInfo run_info(const Trainer& trainer) {
  const Arguments& args = trainer.args();
  const std::string device = device_name(trainer.device());
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  RunInfo run{
      .run_id = fmt::format("{:x}", std::chrono::duration_cast<std::chrono::microseconds>(now).count()),
      .facts = facts_of(trainer, device),
      .arguments = argument_texts(args),
      .train_iters = trainer.train_iters(),
      .world_size = trainer.mesh().world_size(),
      .start_iteration = trainer.state().iteration,
      .peak_flops_per_gpu = peak_flops(device, math_mode(args)).value_or(0.0)};
  if (minimises_other_mean(args, trainer.model())) {
    run.facts.emplace_back("loss",
                           "logged: the mean over all learned tokens of a batch; minimised: the mean of its "
                           "micro-batches' means");
  }
  return run;
}

}  // namespace teratron
