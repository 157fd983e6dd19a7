#include "teratron/train/setup_lines.h"

#include "teratron/base/log.h"
#include "teratron/settings/component_options.h"

namespace teratron {

namespace {

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
}

}  // namespace teratron
