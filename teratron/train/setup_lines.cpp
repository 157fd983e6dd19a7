#include "teratron/train/setup_lines.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <span>

#include "teratron/base/log.h"
#include "teratron/settings/component_options.h"

namespace teratron {

namespace {

std::string upper(std::string_view name) {
  std::string text(name);
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

void print_batch_steps(const Arguments& args, const BatchSchedule& batches) {
  const std::vector<BatchStep> steps = batch_steps(args);
  print("step batch size schedule ({} steps):", steps.size());
  for (const BatchStep& step : steps) {
    print("  >= {} tokens ({} samples) -> batch_size={}, num_microbatches={}",
          step.samples * *args.seq_length, step.samples, step.global_batch_size,
          batches.at(step.samples).microbatches);
  }
}

}  // namespace

// Micro-batches then have different numbers of tokens that count.
bool minimises_other_mean(const Arguments& args, const ModelPlan& plan) {
  const bool differs = args.sft || args.eod_mask_loss || plan.source;
  return differs && !args.skip_train && !args.calculate_per_token_loss &&
         *args.global_batch_size != *args.micro_batch_size;
}

void print_setup(const Arguments& args, const BatchSchedule& batches, int64_t train_iters,
                 const ModelPlan& plan) {
  const std::vector<int64_t>& ramp = args.rampup_batch_size;
  if (args.step_batch_size_schedule) {
    print_batch_steps(args, batches);
  } else if (ramp.empty()) {
    print("setting number of micro-batches to constant {}", batches.at(0).microbatches);
  } else {
    print(
        "will use batch size rampup starting from global batch size {} to global batch size {} with batch "
        "size increments {} over {} samples.",
        ramp[0], *args.global_batch_size, ramp[1], ramp[2]);
  }
  if (!args.skip_train && (args.train_samples || args.num_train_epochs)) {
    print("setting training iterations to {}", train_iters);
  }
  print("> setting random seeds to {} ...", args.seed);
  print(" > padded vocab (size: {}) with {} dummy tokens (new size: {})", plan.vocabulary,
        plan.padded_vocabulary - plan.vocabulary, plan.padded_vocabulary);
  if (!args.skip_train) print("> learning rate decay style: {}", args.lr_decay_style);
  if (minimises_other_mean(args, plan)) {
    notice(
        "the log has the mean loss of all learned tokens of a batch, but what is minimised is the mean of "
        "its micro-batches' means; with --calculate-per-token-loss they are the same");
  }
}

std::string to_string(const StateMemory& memory) {
  const auto count = static_cast<double>(std::max<int64_t>(memory.parameters, 1));
  const int64_t all = memory.weights + memory.gradients + memory.optimizer;
  return fmt::format(
      "memory of weights, gradients and optimizer: {:.1f} + {:.1f} + {:.1f} = {:.1f} bytes per parameter, "
      "{:.3g} GB",
      static_cast<double>(memory.weights) / count, static_cast<double>(memory.gradients) / count,
      static_cast<double>(memory.optimizer) / count, static_cast<double>(all) / count,
      static_cast<double>(all) * 1e-9);
}

StateMemory state_memory(TrainEngine& engine) {
  StateMemory memory{.parameters = engine.parameters().numel(),
                     .optimizer = engine.optimizer().state_bytes()};
  for (const ParamAndGradBuffer& buffer : engine.buffers()) {
    memory.weights += static_cast<int64_t>(buffer.parameters().nbytes());
    memory.gradients += static_cast<int64_t>(buffer.gradients().nbytes());
  }
  for (const Parameter& parameter : engine.parameters().all()) {
    if (!parameter.options.trainable) memory.weights += static_cast<int64_t>(parameter.tensor.nbytes());
  }
  return memory;
}

void print_building_model(const Family& family) {
  print("building {} model ...", upper(family.name));
}

void print_parameters(const Mesh& mesh, int64_t parameters) {
  constexpr size_t most = 16;
  const Group& model = mesh.group({Axis::tp, Axis::pp});
  const std::string mine =
      fmt::format(" > number of parameters on (tensor, pipeline) model parallel rank ({}, {}): {}",
                  mesh.group(Axis::tp).rank, mesh.group(Axis::pp).rank, parameters);
  HostGroup& ranks = *model.communicator;
  const std::vector<std::string> all = ranks.all_gather_bytes(mine);
  if (model.rank >= static_cast<int64_t>(most)) return print_line(mine);
  if (model.rank > 0) return;
  for (const std::string& line : std::span(all).first(std::min(most, all.size()))) print_line(line);
}

void print_epochs(const Arguments& args, const TrainEpoch& epoch, int64_t train_iters) {
  print("***** Running training *****");
  print("  Num examples = {}", epoch.samples);
  const auto epochs_of_steps = [&] { return std::ceil(static_cast<double>(train_iters) / epoch.steps); };
  print("  Num Epochs = {}",
        epoch.steps > 0 ? epochs_of_steps() : static_cast<double>(*args.num_train_epochs));
  print("  Instantaneous batch size per device = {}", *args.micro_batch_size);
  print("  Total train batch size (w. parallel, distributed & accumulation) = {}", *args.global_batch_size);
  print("  Gradient Accumulation steps = {}",
        *args.global_batch_size / (*args.micro_batch_size * *args.data_parallel_size));
  print("  Total optimization steps = {}", train_iters);
}

void print_building_data(const Family& family) {
  print("> building train, validation, and test datasets for {} ...", upper(family.name));
}

void print_finished_data(const Family& family) {
  print("> finished creating {} datasets ...", upper(family.name));
}

}  // namespace teratron
