// Attention: softmax(scale * Q K^T + mask) V over several backends.
//
// The first backend of the capability table that supports everything in the request runs. The last one, math,
// supports all requests, but stores the scores.
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
  /// [B, Sq] first key that each query may see (its document's start); undefined: 0.
  at::Tensor segment_start_BS;
  /// Sliding window (Beltagy et al. 2020): number of keys that a causal query sees, its own position
  /// included; 0: all.
  int64_t window = 0;
  /// [N] ALiBi slopes of this rank's heads (nn/alibi.h); undefined: no bias.
  at::Tensor alibi_slopes;
  /// Stored scores are divided by this and multiplied back in the fp32 softmax, against overflow in fp16
  /// (Megatron-LM's query-key layer scaling). Fused backends have fp32 scores anyway.
  double score_divisor = 1.0;
  double dropout = 0.0;
  DropoutKey dropout_key;
  std::shared_ptr<DropoutRowIds> dropout_row_ids = nullptr;  // null: not shared
  /// Index of this rank's first head among all heads, for layout-independent dropout.
  int64_t head_offset = 0;
  int64_t total_heads = 0;
  /// Backward recomputes scores that a backend would store.
  bool recompute = false;
};

/// -> [Sq, B, N * D], differentiable.
at::Tensor attention(const AttentionRequest& request);

/// Name of the backend that would run: "flash-cpu", "cudnn", "flash", "flash-window", "math".
std::string attention_backend(const AttentionRequest& request);

}  // namespace teratron
