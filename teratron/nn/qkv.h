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

/// qkv [S, B, G, P, D]: for each key/value group P - 2 query heads, a key and a value, N = G (P - 2). With
/// `rope` (may be null), queries and keys are rotated by the angles of positions [S, B]. The results are views
/// of qkv where its layout allows, rotated where they lie: qkv must not be used again. Backward writes the
/// three gradients straight into one of qkv's shape, and sums it for the projection's `bias` (may be null).
QueryKeyValue split_qkv(const at::Tensor& qkv_SBGPD, const RotaryEmbedding* rope,
                        const at::Tensor& positions_SB, Parameter* bias);

}  // namespace teratron
