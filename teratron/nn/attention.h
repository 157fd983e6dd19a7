// Attention: softmax(scale * Q K^T + mask) V behind one interface over several backends.
//
// A request says what is needed; the first backend of the capability table that can honour all of it runs.
// The last one, math, honours everything at the price of keeping the scores.
#pragma once

#include <string>

#include "teratron/nn/dropout.h"

namespace teratron {

struct AttentionRequest {
  // Sq, Sk query and key lengths, B micro-batch, N query heads, G key/value heads (N % G == 0), D head width
  at::Tensor q_SBND;
  at::Tensor k_SBGD;
  at::Tensor v_SBGD;
  double scale = 1.0;
  /// Query i sees keys up to i + Sk - Sq.
  bool causal = true;
  /// [B, Sq] first key each query may see (document bounds); undefined: all.
  at::Tensor first_visible_BS;
  double dropout = 0.0;
  DropoutKey dropout_key;
  /// The first head of this rank among all heads, so that dropout does not depend on the layout.
  int64_t first_head = 0;
  int64_t all_heads = 0;
};

/// -> [Sq, B, N * D], differentiable.
at::Tensor attention(const AttentionRequest& request);

/// The backend that would run: "flash-cpu", "cudnn", "flash", "math".
std::string attention_backend(const AttentionRequest& request);

}  // namespace teratron
