#include "teratron/plan/activation_memory.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace teratron {

namespace {

// The offloaded steps of a stack on the device (nn/offload).
class StackOnDevice {
 public:
  explicit StackOnDevice(const OffloadSchedule& schedule)
      : schedule_(schedule), bytes_(static_cast<size_t>(schedule.offloaded)), first_(schedule.offloaded) {}

  void save(const Operator& op) {
    if (op.offload->offloaded()) bytes_[static_cast<size_t>(op.offload->step)] += op.saved - op.kept;
  }
  // Bytes that leave after the forward of a step.
  double end_step(int64_t step) {
    double freed = 0.0;
    for (const int64_t end = std::min(step + 1, schedule_.offloaded) - schedule_.most_in_flight(step);
         left_ < end; ++left_)
      freed += bytes_[static_cast<size_t>(left_)];
    return freed;
  }
  // Bytes of copies that are unfinished after forward.
  double in_flight() const { return std::accumulate(bytes_.begin() + left_, bytes_.end(), 0.0); }
  double total() const { return std::accumulate(bytes_.begin(), bytes_.end(), 0.0); }
  // Bytes that return before the backward of a step.
  double begin_backward(int64_t step) {
    double returned = 0.0;
    for (const int64_t first = schedule_.first_on_device(step); first_ > first;) {
      --first_;
      if (first_ < left_) returned += bytes_[static_cast<size_t>(first_)];
    }
    return returned;
  }

 private:
  OffloadSchedule schedule_;
  std::vector<double> bytes_;  // of each step
  int64_t left_ = 0;           // steps that have left, the first ones
  int64_t first_;              // steps that are on the device in backward
};

class Timeline {
 public:
  void forward(const Operator& op, bool saves) {
    peak = std::max(peak, alive + op.forward_peak);
    if (saves) alive += op.saved;
  }
  void backward(const Operator& op) {
    alive -= op.saved;
    peak = std::max(peak, alive + op.backward_peak);
  }
  // After the operator's forward; `next` may be null.
  void offload(const Operator& op, const Operator* next) {
    if (enters(op)) {
      stacks_.emplace_back(op.offload->schedule);
      current_ = stacks_.size();
    }
    if (!inside_) return;
    if (op.recompute_unit < 0) stacks_.back().save(op);
    const int64_t step = op.offload->step;
    if (!next || !next->offload || next->offload->step != step) alive -= stacks_.back().end_step(step);
  }
  void end_forward() { inside_ = false; }
  // Before the operator's backward; stacks in reverse.
  void fetch(const Operator& op) {
    if (enters(op)) --current_;
    if (inside_) alive += stacks_[current_].begin_backward(op.offload->step);
  }
  double in_flight() const {
    double bytes = 0.0;
    for (const StackOnDevice& stack : stacks_) bytes += stack.in_flight();
    return bytes;
  }
  double on_host() const {
    double bytes = 0.0;
    for (const StackOnDevice& stack : stacks_) bytes += stack.total();
    return bytes;
  }

  double alive = 0.0;
  double peak = 0.0;

 private:
  bool enters(const Operator& op) {
    const bool was_inside = std::exchange(inside_, op.offload.has_value());
    return inside_ && !was_inside;
  }

  std::vector<StackOnDevice> stacks_;
  size_t current_ = 0;
  bool inside_ = false;  // a stack
};

}  // namespace

ActivationMemory activation_memory(std::span<const Operator> operators) {
  Timeline timeline;
  for (size_t i = 0; i < operators.size(); ++i) {
    timeline.forward(operators[i], operators[i].recompute_unit < 0);
    timeline.offload(operators[i], i + 1 < operators.size() ? &operators[i + 1] : nullptr);
  }
  timeline.end_forward();
  const double saved = timeline.alive - timeline.in_flight(), host = timeline.on_host();
  for (size_t end = operators.size(); end > 0;) {
    size_t begin = end - 1;
    const int64_t unit = operators[begin].recompute_unit;
    while (unit >= 0 && begin > 0 && operators[begin - 1].recompute_unit == unit) --begin;
    timeline.fetch(operators[end - 1]);
    for (size_t i = begin; unit >= 0 && i < end; ++i) timeline.forward(operators[i], true);
    for (size_t i = end; i-- > begin;) timeline.backward(operators[i]);
    end = begin;
  }
  return {.saved = saved, .host = host, .peak = timeline.peak};
}

}  // namespace teratron
