// TrainLoop: evaluation, in steps and of the whole validation split after an epoch.
#include <cmath>

#include "teratron/base/log.h"
#include "teratron/train/train_loop.h"

namespace teratron {

int64_t TrainLoop::epochs_after(int64_t iterations) const {
  if (!args().num_train_epochs || trainer_.train_iters() == 0) return 0;
  return static_cast<int64_t>(static_cast<double>(iterations) *
                              static_cast<double>(*args().num_train_epochs) /
                              static_cast<double>(trainer_.train_iters()));
}

void TrainLoop::log_evaluation(EvalMetrics metrics, const StepResult& result) {
  metrics.iteration = state().iteration;
  metrics.consumed_samples = state().consumed_train_samples;
  metrics.losses = trainer_.losses_of(result);
  metrics.metrics = trainer_.metrics_of(result);
  emit(std::move(metrics));
}

void TrainLoop::evaluate(Split split, const std::string& prefix) {
  if (!trainer_.has(split) || args().eval_iters == 0) return;
  const auto begin = std::chrono::steady_clock::now();
  const bool whole = split == Split::valid && args().full_validation && trainer_.has_whole_valid();
  const StepResult result =
      whole ? trainer_.eval_whole_valid() : trainer_.eval_step(*trainer_.open(split), args().eval_iters);
  const bool repeated =
      split == Split::valid && std::exchange(evaluated_, state().iteration) == state().iteration;
  log_evaluation({.split = split == Split::valid ? "validation" : "test",
                  .prefix = prefix,
                  .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
                  .repeated = repeated},
                 result);
}

void TrainLoop::evaluate_epoch() {
  if (!trainer_.has_whole_valid()) return;
  const auto begin = std::chrono::steady_clock::now();
  const StepResult result = trainer_.eval_whole_valid();
  const int64_t epoch = epochs_after(state().iteration) - 1;
  double loss = 0.0;
  for (const auto& [name, value] : trainer_.losses_of(result)) loss += value;
  if (trainer_.is_last_rank()) print("epoch {}: perplexity: {} eval_loss: {}", epoch, std::exp(loss), loss);
  log_evaluation({.prefix = fmt::format("epoch {}", epoch),
                  .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()},
                 result);
}

}  // namespace teratron
