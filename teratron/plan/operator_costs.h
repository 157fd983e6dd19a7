// Memory and time of forward and backward, operator by operator.
#pragma once

#include <span>

#include "teratron/plan/flops.h"

namespace teratron {

/// In bytes.
struct ActivationMemory {
  double saved = 0.0;  // between forward and backward, on the device
  double host = 0.0;   // the same in host memory
  double peak = 0.0;   // of forward and backward on the device, with what is saved
};

/// Runs one micro-batch: forward in order, backward in reverse, recomputed units again in backward.
ActivationMemory activation_memory(std::span<const Operator> operators);

/// Seconds of forward and backward at the GPU's peak FLOP/s or bandwidth, whichever takes longer (the
/// roofline model, Williams et al. 2009), without communication and idle time: a lower bound. `mode`: of all
/// operators that are not in FP8.
double roofline_seconds(std::span<const Operator> operators, const Gpu& gpu, MathMode mode);

}  // namespace teratron
