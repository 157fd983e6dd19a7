#include "teratron/train/graphs/graph_choice.h"

#include <algorithm>

#include <fmt/format.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// The first step initializes libraries, the second still allocates memory. With graphs, the first captures,
// and the second may still wait for it.
constexpr int64_t unsteady = 2;

double median(std::vector<double> values) {
  TERATRON_ASSERT(!values.empty());
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

GraphChoice::GraphChoice(int64_t watched) : watched_(watched) {
  TERATRON_ASSERT(watched >= 1);
}

GraphChoice::Vote GraphChoice::launch(const Observation& seen) {
  if (phase_ == Phase::kept || phase_ == Phase::eager) return Vote::none;
  in_flight_.push_back(phase_);
  if (phase_ == Phase::watching) {
    if (!seen.gpu_waited) return Vote::none;
    return seen.has_memory ? Vote::gpu_waits : Vote::no_memory;
  }
  return phase_ == Phase::judging && median(after_) >= median(before_) ? Vote::slower : Vote::none;
}

std::optional<GraphChoice::Outcome> GraphChoice::finish(Vote agreed, double seconds) {
  if (in_flight_.empty()) return std::nullopt;
  const Phase launched_in = in_flight_.front();
  in_flight_.pop_front();
  if (launched_in != phase_) return std::nullopt;  // launched before the change
  if (phase_ == Phase::watching) return watch(agreed, seconds);
  if (phase_ == Phase::judging) return judge(agreed);
  measure(seconds);
  return std::nullopt;
}

std::optional<GraphChoice::Outcome> GraphChoice::watch(Vote agreed, double seconds) {
  if (results_++ < unsteady) return std::nullopt;
  before_.push_back(seconds);
  if (agreed != Vote::none) waits_ += 1;
  if (agreed == Vote::no_memory) has_memory_ = false;
  if (std::ssize(before_) < watched_) return std::nullopt;
  results_ = 0;
  const bool waits = 2 * waits_ > watched_;
  phase_ = waits && has_memory_ ? Phase::trying : Phase::eager;
  if (!waits || has_memory_) return std::nullopt;
  return Outcome{.kind = Outcome::Kind::no_memory, .seconds_before = median(before_)};
}

void GraphChoice::measure(double seconds) {
  if (results_++ < unsteady) return;
  after_.push_back(seconds);
  if (std::ssize(after_) == watched_) phase_ = Phase::judging;
}

GraphChoice::Outcome GraphChoice::judge(Vote agreed) {
  const bool slower = agreed == Vote::slower;
  phase_ = slower ? Phase::eager : Phase::kept;
  in_flight_.clear();
  return {.kind = slower ? Outcome::Kind::slower : Outcome::Kind::kept,
          .seconds_before = median(before_),
          .seconds_after = median(after_)};
}

std::string to_string(const GraphChoice::Outcome& outcome) {
  using Kind = GraphChoice::Outcome::Kind;
  const double before = 1e3 * outcome.seconds_before, after = 1e3 * outcome.seconds_after;
  switch (outcome.kind) {
    case Kind::kept:
      return fmt::format(
          "the GPU waited for the host, so micro-batches are replayed as CUDA graphs: {:.1f} ms per step "
          "instead "
          "of {:.1f} (--cuda-graph-impl none: never)",
          after, before);
    case Kind::slower:
      return fmt::format(
          "CUDA graphs are off again: {:.1f} ms per step with them, {:.1f} without, though the GPU waited "
          "for the "
          "host",
          after, before);
    case Kind::no_memory:
      break;
  }
  return fmt::format(
      "the GPU waits for the host ({:.1f} ms per step), but CUDA graphs would need more memory than is free: "
      "smaller micro-batches would leave some",
      before);
}

}  // namespace teratron
