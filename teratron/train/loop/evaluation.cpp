// TrainLoop: evaluation, in steps and of the whole validation split after an epoch.
#include <cmath>

#include "teratron/base/log.h"
#include "teratron/comm/consensus.h"
#include "teratron/device/stream_marker.h"
#include "teratron/train/train_loop.h"

namespace teratron {

namespace {

constexpr double shortest_part_seconds = 0.5;

}  // namespace

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

std::optional<StepResult> TrainLoop::evaluate_in_parts(Split split, bool whole) {
  using Clock = std::chrono::steady_clock;
  const int64_t unit = whole ? 1 : trainer_.eval_batch_size().microbatches;
  int64_t part = unit;
  Clock::time_point begin = Clock::now();
  const NextPart next_part = [&](int64_t done, int64_t most) {
    StreamMarker launched;
    launched.record(trainer_.device());
    launched.wait();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const int signal = signals_.received();
    const double agreed = all_reduce_min(*trainer_.mesh().world().communicator, signal ? -signal : seconds);
    if (agreed < 0.0) {
      stop_reason_ = StopReason::signal;
      stop_signal_ = static_cast<int64_t>(-agreed);
      return int64_t{0};
    }
    if (done > 0 && agreed < shortest_part_seconds) part *= 2;
    if (progress_) progress_->evaluating(done / unit, most / unit);
    begin = Clock::now();
    return part;
  };
  auto result = whole ? trainer_.evaluate_whole_valid(next_part) : trainer_.evaluate(split, next_part);
  if (progress_) progress_->evaluated();
  return result;
}

void TrainLoop::evaluate(Split split, const std::string& prefix) {
  if (!trainer_.has(split) || args().eval_iters == 0) return;
  const auto begin = std::chrono::steady_clock::now();
  const bool whole = split == Split::valid && args().full_validation && trainer_.has_whole_valid();
  const std::optional<StepResult> result = evaluate_in_parts(split, whole);
  if (!result) return;
  const bool repeated =
      split == Split::valid && std::exchange(evaluated_, state().iteration) == state().iteration;
  log_evaluation({.split = split == Split::valid ? "validation" : "test",
                  .prefix = prefix,
                  .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
                  .repeated = repeated},
                 *result);
}

void TrainLoop::evaluate_epoch() {
  if (!trainer_.has_whole_valid()) return;
  const auto begin = std::chrono::steady_clock::now();
  const std::optional<StepResult> result = evaluate_in_parts(Split::valid, /*whole=*/true);
  if (!result) return;
  const int64_t epoch = epochs_after(state().iteration) - 1;
  double loss = 0.0;
  for (const auto& [name, value] : trainer_.losses_of(*result)) loss += value;
  if (trainer_.is_last_rank()) print("epoch {}: perplexity: {} eval_loss: {}", epoch, std::exp(loss), loss);
  log_evaluation({.prefix = fmt::format("epoch {}", epoch),
                  .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()},
                 *result);
}

}  // namespace teratron
