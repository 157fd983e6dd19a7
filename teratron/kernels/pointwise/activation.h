// MLP activations with the bias of the preceding linear layer fused. z = x (+ bias):
//
//   gelu          0.5 z (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))   (Megatron-LM's bias_gelu)
//   gelu_erf      0.5 z (1 + erf(z / sqrt(2)))                      (Hendrycks, Gimpel 2016)
//   squared_relu  max(z, 0)^2                                       (Primer, So et al. 2021)
//   relu          max(z, 0)
//   silu          z / (1 + exp(-z))
//   quick_gelu    z / (1 + exp(-1.702 z))                           (CLIP, Radford et al. 2021)
//   swiglu        silu(gate) * up, z = gate|up: halves of the last dimension (Shazeer 2020)
//   geglu         gelu(gate) * up, with the tanh form
//
// Shapes: x [..., m] contiguous, bias [m] or undefined; y [..., n] with m = 2n if gated, else m = n. Dtypes:
// f32, bf16, f16, f64; bias in x's dtype; arithmetic in f32 (f64 for f64). CPU and CUDA; asynchronous on the
// current CUDA stream. Bitwise reproducible.
// Measurements: docs/notes/pointwise.md.
#pragma once

#include "teratron/kernels/common/grad_sink.h"
#include "teratron/kernels/pointwise/activation_kind.h"

namespace teratron {

/// Writes to `y` if defined; with a gated activation, y must not overlap x.
at::Tensor activation_forward(const at::Tensor& x, const at::Tensor& bias, Activation activation,
                              at::Tensor y = {});

struct ActivationGradients {
  at::Tensor dx;
  at::Tensor dbias;  // column sum of dx before rounding: f32 [m] (f64 for f64); undefined if not requested
};
/// Where the gradients of a backward go.
struct ActivationGradOutputs {
  at::Tensor dx = {};                            // contiguous, may be x; undefined: a new tensor
  std::optional<GradSink> dbias = std::nullopt;  // nullopt: not computed
};
/// dx, and dbias in the same pass, from dy [..., n] and the forward's input; everything else is recomputed.
ActivationGradients activation_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                        Activation activation, const ActivationGradOutputs& outputs = {});

/// Sum over all rows: x [..., n] -> f32 [n] (f64 for f64). Fixed order, so bitwise reproducible.
at::Tensor column_sum(const at::Tensor& x, const GradSink& sink = {});

}  // namespace teratron
