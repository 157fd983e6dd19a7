// Activations of an MLP (pointwise/activation.h), each row multiplied by a number: an expert's probability.
//
//   h = p f(z)        dz = p dh f'(z)        dp = sum over the row of dh f(z)
//
// z [R, m] contiguous, h [R, n] with m = 2n if gated, else m = n; p, dp [R] in f32 (f64 for f64). z's dtypes:
// f32, bf16, f16, f64; arithmetic in f32 (f64), on CPUs rounded to z's dtype after each operation. CPU and
// CUDA; asynchronous on the current CUDA stream. Bitwise reproducible.
#pragma once

#include <ATen/core/Tensor.h>

#include "teratron/kernels/pointwise/activation_kind.h"

namespace teratron {

/// h.
at::Tensor weighted_activation_forward(const at::Tensor& z, const at::Tensor& p_R, Activation activation);

struct WeightedActivationGradients {
  at::Tensor h;  // computed again, for the gradient of the weights that multiply it
  at::Tensor dz, dp_R;
};
/// Overwrites `dh`.
WeightedActivationGradients weighted_activation_backward(at::Tensor dh, const at::Tensor& z,
                                                         const at::Tensor& p_R, Activation activation);

}  // namespace teratron
