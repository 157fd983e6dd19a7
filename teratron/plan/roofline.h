// A lower bound of the time of forward and backward (the roofline model, Williams et al. 2009).
#pragma once

#include <span>

#include "teratron/nn/cost/operator.h"
#include "teratron/plan/flops.h"

namespace teratron {

/// Seconds of forward and backward at the GPU's peak FLOP/s or bandwidth, whichever takes longer, without
/// communication and idle time. `mode`: of all operators that are not in FP8.
double roofline_seconds(std::span<const Operator> operators, const Gpu& gpu, MathMode mode);

}  // namespace teratron
