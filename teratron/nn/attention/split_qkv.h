// Splits the fused QKV projection into queries, keys and values.
#pragma once

#include "teratron/nn/attention/rope.h"
#include "teratron/nn/parameter.h"

namespace teratron {

struct QueryKeyValue {
  at::Tensor q_SBND;
  at::Tensor k_SBGD;
  at::Tensor v_SBGD;
};

/// qkv [S, B, G, P, D]: per key/value group P - 2 query heads, a key and a value; N = G (P - 2).
struct QkvProjection {
  at::Tensor qkv_SBGPD;
  Parameter* bias;            // may be null
  bool rope_applied = false;  // by the GEMM's epilogue
};
/// Whether queries can be a view of the projection, evenly spaced in memory: one query head per group, or one
/// group.
bool queries_are_view(int64_t groups, int64_t queries_per_group);
/// `rope`, if not null, rotates queries and keys by the angles of positions [S, B]. The results are views of
/// qkv where its layout allows, with keys rotated in place, so qkv must not be used afterwards. Backward
/// writes the three gradients, rotated back, directly into one of qkv's shape, and sums it for the bias.
QueryKeyValue split_qkv(const QkvProjection& projection, const RotaryEmbedding* rope,
                        const at::Tensor& positions_SB);

}  // namespace teratron
