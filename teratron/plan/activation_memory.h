// Memory of forward and backward, operator by operator.
#pragma once

#include <span>

#include "teratron/nn/cost/operator.h"

namespace teratron {

/// In bytes.
struct ActivationMemory {
  double saved = 0.0;  // between forward and backward, on the device
  double host = 0.0;   // the same in host memory
  double peak = 0.0;   // of forward and backward on the device, with what is saved
};

/// Runs one micro-batch: forward in order, backward in reverse, recomputed units again in backward.
ActivationMemory activation_memory(std::span<const Operator> operators);

}  // namespace teratron
