#include "teratron/plan/operator_costs.h"

#include <algorithm>

namespace teratron {

namespace {

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

  double alive = 0.0;
  double peak = 0.0;
};

// Forwards and backwards, in forwards: backward of a GEMM is two GEMMs, that of fused attention five to the
// forward's two.
double passes(const Operator& op) {
  const double backward = op.kind == Operator::Kind::attention ? 2.5 : 2.0;
  return 1.0 + backward + (op.recompute_unit >= 0 ? 1.0 : 0.0);
}

}  // namespace

ActivationMemory activation_memory(std::span<const Operator> operators) {
  Timeline timeline;
  for (const Operator& op : operators) timeline.forward(op, op.recompute_unit < 0);
  const double saved = timeline.alive;
  for (size_t end = operators.size(); end > 0;) {
    size_t begin = end - 1;
    const int64_t unit = operators[begin].recompute_unit;
    while (unit >= 0 && begin > 0 && operators[begin - 1].recompute_unit == unit) --begin;
    for (size_t i = begin; unit >= 0 && i < end; ++i) timeline.forward(operators[i], true);
    for (size_t i = end; i-- > begin;) timeline.backward(operators[i]);
    end = begin;
  }
  return {saved, timeline.peak};
}

double roofline_seconds(std::span<const Operator> operators, const Gpu& gpu, MathMode mode) {
  double seconds = 0.0;
  for (const Operator& op : operators) {
    const double peak = gpu.peak(op.fp8 ? MathMode::fp8 : mode).value_or(gpu.half);
    seconds += passes(op) * std::max((op.flops - op.masked_flops) / peak, op.bytes / gpu.bandwidth);
  }
  return seconds;
}

}  // namespace teratron
