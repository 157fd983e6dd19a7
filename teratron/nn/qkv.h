// The fused projection of queries, keys and values, taken apart.
#pragma once

#include "teratron/nn/parameter.h"
#include "teratron/nn/rope.h"

namespace teratron {

struct QueryKeyValue {
  at::Tensor q_SBND;
  at::Tensor k_SBGD;
  at::Tensor v_SBGD;
};

/// qkv [S, B, G, P, D]: for each key/value group P - 2 query heads, a key and a value, N = G (P - 2).
struct QkvProjection {
  at::Tensor qkv_SBGPD;
  Parameter* bias;      // may be null
  bool turned = false;  // queries and keys are rotated already
};
/// Whether queries can be a view of the projection, being evenly spaced in memory: a group has one, or there is one group.
bool queries_are_view(int64_t groups, int64_t queries_per_group);
/// With `rope` (may be null), queries and keys are rotated by the angles of positions [S, B]. The results are views of qkv
/// where its layout allows, keys rotated where they lie: qkv must not be used again. Backward writes the three gradients, turned
/// back, straight into one of qkv's shape, and sums it for the bias.
QueryKeyValue split_qkv(const QkvProjection& projection, const RotaryEmbedding* rope,
                        const at::Tensor& positions_SB);

}  // namespace teratron
