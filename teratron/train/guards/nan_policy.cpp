#include "teratron/train/guards/nan_policy.h"

#include "teratron/base/log.h"
#include "teratron/settings/component_options.h"
#include "teratron/train/guards/nonfinite.h"

namespace teratron {

Fault NanPolicy::fault(const StepResult& result, const PendingStep& step) {
  const StepMetrics& metrics = result.metrics;
  const std::string diagnosis = diagnose_nonfinite(engine_, step, metrics.iteration, run_directory(args_));
  return Fault(
      fmt::format("loss {} and gradient norm {} at iteration {}: the weights were left as they were after "
                  "iteration {}. {} Lower --lr, lengthen the warm-up or look at the data from sample {} on; "
                  "--max-nan-iterations skips so many such steps in a row, and "
                  "--no-check-for-nan-in-loss-and-grad trains on regardless",
                  result.loss, result.grad_norm, metrics.iteration, metrics.iteration - 1 - skipped_,
                  diagnosis, metrics.consumed_samples - metrics.global_batch_size),
      ExitCode::numerics);
}

bool NanPolicy::was_skipped(const StepResult& result, const PendingStep& step,
                            const std::function<void()>& before_stop) {
  if (args_.fp16) return result.nonfinite;
  if (!args_.check_for_nan_in_loss_and_grad) return false;
  if (!result.nonfinite) {
    skipped_ = 0;
    return false;
  }
  if (skipped_ == args_.max_nan_iterations) {
    const Fault stop = fault(result, step);
    before_stop();
    throw Fault(stop);
  }
  ++skipped_;
  if (engine_.mesh().rank() == 0) {
    warn("loss {} and gradient norm {} at iteration {}: the step is skipped ({} of at most {} in a row)",
         result.loss, result.grad_norm, result.metrics.iteration, skipped_, args_.max_nan_iterations);
  }
  return true;
}

}  // namespace teratron
