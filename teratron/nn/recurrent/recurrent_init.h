// Initial values that Mamba-2 and gated delta nets share.
#pragma once

#include <cmath>

#include "teratron/nn/parameter.h"

namespace teratron {

/// A_log, for decays exp(-A dt) with A uniform in [1, 16].
inline Init log_uniform_decay() {
  return Init::mapped([](const at::Tensor& u) { return (8.5 + 7.5 * u).log(); });
}

/// PyTorch's of a depthwise convolution of `kernel` tokens.
inline Init of_convolution(int64_t kernel) {
  return Init::uniform(1.0 / std::sqrt(static_cast<double>(kernel)));
}

}  // namespace teratron
