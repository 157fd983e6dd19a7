// Self-attention with a fused QKV projection, multi-head or grouped-query, tensor-parallel over query groups.
// Optional: query-key normalization (Henry et al. 2020), ALiBi, sliding window.
#pragma once

#include <optional>

#include "teratron/nn/attention/attention.h"
#include "teratron/nn/linear.h"
#include "teratron/nn/norm.h"
#include "teratron/nn/rope.h"

namespace teratron {

/// Keys and values of one layer for all tokens so far; grows during generation.
struct KeyValueCache {
  at::Tensor k_SBGD;
  at::Tensor v_SBGD;
};

/// Inputs of all attention layers for one micro-batch. Positions and document bounds are tensors, never
/// constants.
struct AttentionContext {
  const RotaryEmbedding* rope = nullptr;  // null: no RoPE
  at::Tensor positions_SB;
  Segments segments;  // see AttentionRequest
  uint64_t dropout_seed = 0;
  at::Tensor sample_ids_B;                                   // see DropoutKey
  std::shared_ptr<DropoutRowIds> dropout_row_ids = nullptr;  // shared by all layers for this micro-batch
  bool training = true;                                      // dropout is active
};

struct SelfAttentionOptions {
  int64_t hidden = 0;
  int64_t heads = 0;         // query heads
  int64_t query_groups = 0;  // key/value heads
  int64_t kv_channels = 0;   // head width
  bool bias = true;
  bool qkv_bias = true;
  double dropout = 0.0;
  uint64_t dropout_site = 0;
  Init qkv_init;
  Init output_init;
  std::optional<NormOptions> qk_norm;  // of each head's query and key, before RoPE
  bool alibi = false;
  int64_t window = 0;          // see AttentionRequest
  double score_divisor = 1.0;  // see AttentionRequest
  bool recompute_core = false;
};

class SelfAttention {
 public:
  SelfAttention(const Scope& scope, const SelfAttentionOptions& options, const TensorParallel& parallel);
  /// residual + dropout(attention(x) + output bias): x [S, B, H] -> [S, B, H]. `cache` is this layer's, or
  /// null.
  Hidden forward_add_residual(const at::Tensor& x_SBH, const ResidualDropout& residual,
                              const AttentionContext& context, KeyValueCache* cache);

 private:
  SelfAttentionOptions options_;
  Group group_;
  ColumnLinear qkv_;
  RowLinear output_;
  std::optional<Norm> q_norm_;
  std::optional<Norm> k_norm_;
  at::Tensor alibi_slopes_N_;
};

}  // namespace teratron
