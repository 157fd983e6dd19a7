// Activations with a fused FP8 cast, so that the result never exists in x's dtype.
//
//   activation_forward_fp8(x)       = cast_to_fp8(activation_forward(x))
//   activation_backward_fp8(dy, x)  = cast_to_fp8(activation_backward(dy, x))
//
// bitwise: values are rounded to x's dtype before the cast. The requirements are those of activation.h and
// fp8.h for a matrix x without bias. bf16 and f16 on a GPU take one pass, anything else two.
#pragma once

#include "teratron/kernels/fp8/fp8.h"
#include "teratron/kernels/pointwise/activation.h"

namespace teratron {

Fp8Matrix activation_forward_fp8(const at::Tensor& x, Activation activation, const Fp8Cast& cast);

struct Fp8ActivationGradients {
  Fp8Matrix dx;
  at::Tensor dbias;  // column sum of dx before rounding: f32; undefined if not requested
};
Fp8ActivationGradients activation_backward_fp8(const at::Tensor& dy, const at::Tensor& x,
                                               Activation activation, const Fp8Cast& cast,
                                               const std::optional<GradSink>& dbias_sink);

}  // namespace teratron
