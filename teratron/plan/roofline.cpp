#include "teratron/plan/roofline.h"

#include <algorithm>

namespace teratron {

namespace {

// Forwards and backwards, in forwards: backward of a GEMM is two GEMMs, that of fused attention five to the
// forward's two.
double passes(const Operator& op) {
  const double backward = op.kind == Operator::Kind::attention ? 2.5 : 2.0;
  return 1.0 + backward + (op.recompute_unit >= 0 ? 1.0 : 0.0);
}

}  // namespace

double roofline_seconds(std::span<const Operator> operators, const Gpu& gpu, MathMode mode) {
  double seconds = 0.0;
  for (const Operator& op : operators) {
    const double peak = gpu.peak(op.fp8 ? MathMode::fp8 : mode).value_or(gpu.half);
    seconds += passes(op) * std::max((op.flops - op.masked_flops) / peak, op.bytes / gpu.bandwidth);
  }
  return seconds;
}

}  // namespace teratron
