// Queries, keys and values of multi-head latent attention from what its projections give
// (latent_attention.h), and attention of single tokens over latents.
#pragma once

#include "teratron/nn/attention/rope.h"
#include "teratron/nn/attention/split_qkv.h"

namespace teratron {

/// Before rotation.
struct LatentProjections {
  at::Tensor q_SBND;      // overwritten
  at::Tensor kv_SBNE;     // per head [k_nope | v]
  at::Tensor k_rope_SBD;  // the last channels of the keys of all heads
};

/// Queries with their last channels rotated, keys [k_nope | rotated k_rope] and values, views of kv.
/// Differentiable.
QueryKeyValue join_heads(const LatentProjections& projections, const RotaryEmbedding& rope,
                         const at::Tensor& positions_SB);

/// What one token of each row sees: latents [R, L, Rank + rope] of which the first positions + 1 are its
/// sequence's. Undefined positions: all are.
struct SeenLatents {
  at::Tensor latents_RLW;
  at::Tensor positions_R = {};
};
/// Attention of rotated queries [R, N, D] with the rows of W_kvu [N, nope + v, Rank]:
/// scores = scale (q_nope W_uk . c + q_rope . k_rope), y = W_uv (softmax(scores) c); -> [R, N, v]. Softmax
/// and its sums in fp32 (fp64 for fp64).
at::Tensor absorbed_attention(const at::Tensor& q_RND, const at::Tensor& up_NER, const SeenLatents& seen,
                              double scale);

}  // namespace teratron
