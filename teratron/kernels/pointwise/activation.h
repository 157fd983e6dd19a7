// Activation functions of the MLP, with the bias of the preceding linear layer fused. z = x (+ bias):
//
//   gelu          0.5 z (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))   (Megatron-LM's bias_gelu)
//   gelu_erf      0.5 z (1 + erf(z / sqrt(2)))                      (Hendrycks, Gimpel 2016)
//   squared_relu  max(z, 0)^2                                       (Primer, So et al. 2021)
//   relu          max(z, 0)
//   silu          z / (1 + exp(-z))
//   swiglu        silu(gate) * up, z = gate|up: halves of the last dimension (Shazeer 2020)
//   geglu         gelu(gate) * up, with the tanh form
//
// Shapes: x [..., m] contiguous, bias [m] or undefined; y [..., n] with m = 2n for swiglu and geglu, else m =
// n. Dtypes: f32, bf16, f16, f64; bias in x's dtype; arithmetic in f32 (f64 for f64). CPU and CUDA;
// asynchronous on the current CUDA stream. Bitwise reproducible.
#pragma once

#include "teratron/kernels/common/grad_sink.h"
#include "teratron/kernels/pointwise/activation_kind.h"

namespace teratron {

/// Into `y` if that is given, which of a gated activation must not overlap x.
at::Tensor activation_forward(const at::Tensor& x, const at::Tensor& bias, Activation activation,
                              at::Tensor y = {});

/// dx from dy [..., n] and the forward's input, from which everything is recomputed; the bias' gradient is
/// column_sum(dx). Into `dx` if that is given.
at::Tensor activation_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                               Activation activation, at::Tensor dx = {});

struct SummedGradient {
  at::Tensor dx;
  at::Tensor column_sum;  // of dx before it is rounded: f32 [m] (f64 for f64)
};
struct SummedGradientInto {
  at::Tensor dx = {};  // undefined: a new tensor
  SumInto column_sum = {};
};
/// The same and the bias' gradient in one pass, as column_sum gives it.
SummedGradient activation_backward_summed(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                          Activation activation, const SummedGradientInto& into = {});

/// Sum over all rows: x [..., n] -> f32 [n] (f64 for f64), in a fixed order: bitwise reproducible.
at::Tensor column_sum(const at::Tensor& x, const SumInto& into = {});

}  // namespace teratron
