#include "teratron/train/loop/evaluator.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "teratron/base/log.h"
#include "teratron/comm/consensus.h"
#include "teratron/device/stream_marker.h"

namespace teratron {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double shortest_part_seconds = 0.5;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

int64_t Evaluator::epochs_after(int64_t iterations) const {
  const std::optional<int64_t>& epochs = trainer_.args().num_train_epochs;
  const int64_t last = trainer_.train_iters();
  if (!epochs || last == 0) return 0;
  const double given = trainer_.epoch().steps;
  const double steps = given > 0.0 ? given : static_cast<double>(last) / static_cast<double>(*epochs);
  constexpr double rounding = 1e-9;
  const double complete = static_cast<double>(iterations) / steps;
  // The last epoch ends with the training, complete or not.
  return static_cast<int64_t>(iterations >= last ? std::ceil(complete - rounding) : complete + rounding);
}

bool Evaluator::at_epoch_end() const {
  const int64_t iteration = trainer_.state().iteration;
  return epochs_after(iteration) > epochs_after(iteration - 1);
}

void Evaluator::log(EvalMetrics metrics, const StepResult& result) {
  metrics.iteration = trainer_.state().iteration;
  metrics.consumed_samples = trainer_.state().consumed_train_samples;
  metrics.losses = trainer_.losses_of(result);
  metrics.metrics = trainer_.metrics_of(result);
  metrics.has_perplexity = trainer_.has_perplexity();
  log_.emit(std::move(metrics));
}

std::optional<StepResult> Evaluator::in_parts(Split split, bool whole) {
  const int64_t unit = whole ? 1 : trainer_.eval_batch_size().microbatches;
  int64_t part = unit;
  Clock::time_point begin = Clock::now();
  const NextPart next_part = [&](int64_t done, int64_t most) {
    StreamMarker launched;
    launched.record(trainer_.device());
    launched.wait();
    const double seconds = seconds_since(begin);
    const int signal = stop_.signal_received();
    const double agreed = all_reduce_min(*trainer_.mesh().world().communicator, signal ? -signal : seconds);
    if (agreed < 0.0) {
      stop_.stop_by_signal(static_cast<int64_t>(-agreed));
      return int64_t{0};
    }
    if (done > 0 && agreed < shortest_part_seconds) part *= 2;
    log_.evaluating(done / unit, most / unit);
    begin = Clock::now();
    return part;
  };
  auto result = whole ? trainer_.evaluate_whole_valid(next_part) : trainer_.evaluate(split, next_part);
  log_.evaluated();
  return result;
}

bool Evaluator::evaluate(Split split, const std::string& prefix) {
  const Arguments& args = trainer_.args();
  if (!trainer_.has(split) || args.eval_iters == 0) return false;
  const Clock::time_point begin = Clock::now();
  const bool whole = split == Split::valid && args.full_validation && trainer_.has_whole_valid();
  const std::optional<StepResult> result = in_parts(split, whole);
  if (!result) return false;
  const int64_t iteration = trainer_.state().iteration;
  const bool repeated = split == Split::valid && std::exchange(evaluated_, iteration) == iteration;
  log({.split = split == Split::valid ? "validation" : "test",
       .prefix = prefix,
       .seconds = seconds_since(begin),
       .repeated = repeated},
      *result);
  return true;
}

void Evaluator::evaluate_epoch() {
  if (!trainer_.has_whole_valid()) return;
  const Clock::time_point begin = Clock::now();
  const std::optional<StepResult> result = in_parts(Split::valid, /*whole=*/true);
  if (!result) return;
  const int64_t epoch = epochs_after(trainer_.state().iteration) - 1;
  double loss = 0.0;
  for (const auto& [name, value] : trainer_.losses_of(*result)) loss += value;
  std::string line = fmt::format("epoch {}:", epoch);
  if (trainer_.has_perplexity()) line += fmt::format(" perplexity: {}", std::exp(loss));
  line += fmt::format(" eval_loss: {}", loss);
  for (const auto& [name, value] : trainer_.metrics_of(*result)) line += fmt::format(" {}: {}", name, value);
  if (trainer_.is_last_rank()) print_line(line);
  log({.prefix = fmt::format("epoch {}", epoch), .is_told = true, .seconds = seconds_since(begin)}, *result);
}

}  // namespace teratron
