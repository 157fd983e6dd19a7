// Softmax over attention scores, for cases that no fused attention backend supports (attention dropout,
// arbitrary masks):
//
//   P[b,n,i,j] = softmax over the allowed j of scale * scores[b,n,i,j] + slopes[n] (j - i');   y = dropout(P)
//
// with i' = i + (Sk - Sq), the key at the query's position, and ALiBi slopes (Press et al. 2022). Key j is
// allowed for query i unless mask[b,n,i,j] is true or, with `causal`, j > i'. A row without any allowed key
// is all zeros, as in Megatron-LM's masked softmax. Masked scores may be anything, including NaN.
//
// Shapes: scores [B, N, Sq, Sk] contiguous; f32, bf16, f16, f64, arithmetic in f32 (f64). Bitwise
// reproducible, masks identical on CPU and CUDA; asynchronous on the current CUDA stream.
// Measurements: docs/notes/attention.md.
#pragma once

#include <ATen/core/Tensor.h>

#include "teratron/kernels/pointwise/dropout.h"

namespace teratron {

struct SoftmaxOptions {
  double scale = 1;
  bool causal = false;
  at::Tensor mask;    // bool, expandable to the scores ([B, 1, Sq, Sk]...); may be undefined
  at::Tensor slopes;  // f32 [N] (f64 for f64 scores); may be undefined
  Dropout dropout;    // score_dropout.h has the mask; rows are numbered over [B, N, Sq], columns are all keys
};

struct SoftmaxOutput {
  at::Tensor probabilities;  // P, saved for the backward
  at::Tensor y;              // the same tensor if dropout.p = 0
};

SoftmaxOutput softmax_forward(const at::Tensor& scores, const SoftmaxOptions& options);

/// dscores = scale * P * (g - sum_j P g), with g = dropout(dy).
at::Tensor softmax_backward(const at::Tensor& dy, const at::Tensor& probabilities,
                            const SoftmaxOptions& options);

}  // namespace teratron
