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

// Micro-batches then have different numbers of tokens that count.
void say_what_is_minimised(const Arguments& args) {
  const bool differs = args.sft || args.eod_mask_loss;
  if (args.skip_train || !differs || args.calculate_per_token_loss ||
      *args.global_batch_size == *args.micro_batch_size)
    return;
  notice(
      "the log has the mean loss of all learned tokens of a batch, but what is minimised is the mean of its "
      "micro-batches' means; with --calculate-per-token-loss they are the same");
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
  say_what_is_minimised(args);
}

}  // namespace teratron
