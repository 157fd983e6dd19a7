// The activation functions with their result cast to FP8 in the same pass, so that it never exists in x's dtype.
//
//   activation_forward_fp8(x)        is  cast_to_fp8(activation_forward(x))
//   activation_backward_fp8(dy, x)   is  cast_to_fp8(activation_backward(dy, x))
//
// to the bit: values are rounded to x's dtype before they are cast. Conditions are those of activation.h and fp8.h for a
// matrix x without a bias. bf16 and f16 on a GPU take one pass; anything else takes the two.
#pragma once

#include "teratron/kernels/fp8/fp8.h"
#include "teratron/kernels/pointwise/activation.h"

namespace teratron {

Fp8Matrix activation_forward_fp8(const at::Tensor& x, Activation activation, const Fp8Cast& cast);

struct SummedFp8Gradient {
  Fp8Matrix dx;
  at::Tensor column_sum;  // of dx before it is rounded: f32; undefined where it is not wanted
};
SummedFp8Gradient activation_backward_fp8(const at::Tensor& dy, const at::Tensor& x, Activation activation,
                                          const Fp8Cast& cast, const WantedSum& sum);

}  // namespace teratron
