// Attention with dropout of the probabilities and a bias by distance, which no library's kernel offers with a
// mask that is independent of the layout (after Dao 2023, "FlashAttention-2"):
//
//   y = dropout(softmax(scale * q k^T + bias)) v,   bias of query i and key j: bias[head, j - i + Sq - 1]
//
// or, without a bias, softmax(c tanh(scale * q k^T / c)), a soft cap c of the scores (Gemma 2).
//
// Memory is linear in the sequence: masks of dropout (score_dropout.h) and probabilities are recomputed in
// the backward from the log-sum-exp of the scores. The backward takes two passes over the scores, one for dq
// and the bias, one for dk and dv, so that no sum needs atomics.
//
// Shapes: q, y, dy, dq [Sq, B, N, D]; k, v, dk, dv [Sk, B, G, D], N heads of queries in G groups; any strides
// that are multiples of 8 but the last, which is 1; 16-byte aligned. bias f32 [N, Sq + Sk - 1], rows
// contiguous. bf16 or f16, products and sums in f32; D <= 128, D % 8 = 0; B, N <= 65,535; B Sq, B Sk < 2^31.
// CUDA of compute capability 8.0, asynchronous on the current stream, can be captured in a graph; bitwise
// reproducible. Queries without keys give 0.
// Measurements: docs/notes/attention.md.
#pragma once

#include <ATen/core/Tensor.h>

#include "teratron/kernels/pointwise/dropout.h"

namespace teratron {

struct FusedAttentionInputs {
  at::Tensor q_SBND, k_SBGD, v_SBGD;
  at::Tensor bias;  // undefined: none
};

struct FusedAttentionOptions {
  double scale = 1.0;    // > 0
  double softcap = 0.0;  // c; 0: none. Not with a bias
  bool causal = false;
  int64_t window = 0;                     // see nn/attention/attention.h; only with `causal`
  at::Tensor cu_seqlens_q, cu_seqlens_k;  // i32, both or none: see nn/tokens/segments.h
  Dropout dropout;                        // rows are numbered over [B, N, Sq] and given; p < 1 - 2^-17
};

struct FusedAttentionOutput {
  at::Tensor y_SBND;
  at::Tensor logsumexp_BNS;  // f32, base 2
  at::Tensor ranges_BS2;     // i32, keys that each query sees; undefined without segments
};

struct FusedAttentionGradients {
  at::Tensor q_SBND, k_SBGD, v_SBGD;
  at::Tensor bias;  // f32 [N, Sq + Sk - 1], contiguous; undefined: not needed
};

/// Whether the current device and these tensors are supported.
bool fused_attention_supports(const FusedAttentionInputs& inputs);

FusedAttentionOutput fused_attention(const FusedAttentionInputs& inputs,
                                     const FusedAttentionOptions& options);

/// Fills `gradients`.
void fused_attention_backward(const FusedAttentionInputs& inputs, const FusedAttentionOptions& options,
                              const FusedAttentionOutput& forward, const at::Tensor& dy_SBND,
                              const FusedAttentionGradients& gradients);

}  // namespace teratron
