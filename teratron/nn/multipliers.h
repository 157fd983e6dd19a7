// Factors of activations that some models have in place of other initialisations (muP: Yang et al. 2022).
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace teratron {

/// x with each part of its last dimension, of `sizes`, times its factor. Differentiable; saves nothing.
at::Tensor scale_parts(const at::Tensor& x, const std::vector<int64_t>& sizes,
                       const std::vector<double>& factors);

}  // namespace teratron
