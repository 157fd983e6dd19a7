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
  /// Sliding window (Beltagy et al. 2020): keys that a causal query sees, its own place included; 0: all.
  int64_t window = 0;
  /// [N] ALiBi's slopes of this rank's heads (nn/alibi.h); undefined: no bias.
  at::Tensor alibi_slopes;
  /// Scores are kept divided by this and multiplied back in the fp32 softmax: half precision overflows later
  /// (Megatron-LM's query-key layer scaling). Backends that keep no scores have them in fp32 anyway.
  double score_divisor = 1.0;
  double dropout = 0.0;
  DropoutKey dropout_key;
  std::shared_ptr<DropoutRows> dropout_rows = nullptr;  // of the micro-batch; null: of this request alone
  /// The first head of this rank among all heads, so that dropout does not depend on the layout.
  int64_t first_head = 0;
  int64_t all_heads = 0;
  /// Backward computes the scores again where a backend would keep them.
  bool recompute = false;
};

/// -> [Sq, B, N * D], differentiable.
at::Tensor attention(const AttentionRequest& request);

/// The backend that would run: "flash-cpu", "cudnn", "flash", "flash-window", "math".
std::string attention_backend(const AttentionRequest& request);

}  // namespace teratron
