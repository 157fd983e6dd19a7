#include "teratron/train/run_info.h"

#include <chrono>

#include "teratron/device/device.h"
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

RunInfo run_info(const Trainer& trainer) {
  const Arguments& args = trainer.args();
  const std::string device = device_name(trainer.device());
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  RunInfo run{
      .run_id = fmt::format("{:x}", std::chrono::duration_cast<std::chrono::microseconds>(now).count()),
      .facts = {{"model", trainer.model().summary},
                {"parameters on a rank", fmt::format("{}", trainer.engine().parameters().numel())},
                {"sequence length", fmt::format("{}", args.seq_length.value())},
                {"batch", fmt::format("{} samples, micro-batches of {}", args.global_batch_size.value(),
                                      args.micro_batch_size.value())},
                {"precision", precision_name(args)},
                {"layout", layout_name(args)},
                {"device", device},
                {"seed", fmt::format("{}", args.seed)}},
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
