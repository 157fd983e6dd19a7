// Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2"): the keys and values of all heads are
// projections of one latent vector of a token, which is all that generation keeps of it.
//
//   c_q       = norm(x W_qd^T)   [Rq]             q = c_q W_qu^T, or x W_q^T      per head [nope | rope]
//   [c | k_r] = x W_kvd^T        [R + rope]       norm(c) W_kvu^T                 per head [k_nope | v]
//   q_r, k_r rotated by the token's position, k_r for all heads                   k = [k_nope | k_r]
//   y = softmax(scale q k^T) v W_o^T
//
// Tensor parallelism divides the heads; W_qd, W_kvd and the norms are on every rank, whose gradients are
// complete without sequence parallelism and summed with it. Latents are gathered, not hidden states.
//
// One new token of a sequence attends to the latents themselves (the projections of k_nope and v moved to
// the other side: "absorbed"), more of them to keys and values that are computed again.
#pragma once

#include <memory>
#include <optional>

#include "teratron/nn/attention/attention_layer.h"
#include "teratron/nn/mla/latent_state.h"
#include "teratron/nn/norm.h"

namespace teratron {

struct LatentAttentionOptions {
  /// kv_channels: nope and rope channels of a head's queries and keys; v_channels: of its values. `bias`: of
  /// the output; qkv_bias: of W_qd and W_kvd. As many query groups as heads, no other options of queries.
  AttentionLayerOptions attention;
  int64_t query_rank = 0;                // Rq; 0: no latents of queries, W_q (linear_q_proj)
  int64_t kv_rank = 0;                   // R
  int64_t rope_channels = 0;             // the last ones of a head
  std::optional<NormOptions> norm = {};  // of latents

  int64_t nope_channels() const { return attention.kv_channels - rope_channels; }
  /// Values that generation keeps for each token.
  int64_t state_width() const { return kv_rank + rope_channels; }
};

class LatentAttention : public Mixer {
 public:
  LatentAttention(const Scope& scope, const LatentAttentionOptions& options, const TensorParallel& parallel);
  Hidden forward_add_residual(const Normed& normed_SBH, const ResidualDropout& residual,
                              const LayerContext& context, LayerState* state) override;
  std::unique_ptr<LayerState> make_state(LayerState* before) const override;

 private:
  /// After the norm, S local under sequence parallelism; and the key before rotation, S global.
  struct Latents {
    at::Tensor c_SBR, k_rope_SBD;
  };
  at::Tensor queries(const at::Tensor& x_SBH, const DropoutArgs& dropout);
  Latents latents(const at::Tensor& x_SBH, const DropoutArgs& dropout);
  QueryKeyValue expand(const at::Tensor& q_SBND, const Latents& latents, const DropoutArgs& dropout,
                       const LayerContext& context);
  at::Tensor generate(const at::Tensor& q_SBND, const Latents& latents, const LatentState& state,
                      const LayerContext& context);
  /// Attention of tokens of one sequence, [tokens, 1, N, D] -> [tokens, 1, N D].
  at::Tensor attend_row(const at::Tensor& q_TBND, const LatentState& state, const GenerationRow& row,
                        const LayerContext& context);
  /// W_kvu with its adapter, per head [N, nope + v channels, R].
  at::Tensor up_weight();
  int64_t heads() const { return core_.heads(); }

  LatentAttentionOptions options_;
  TensorParallel parallel_;
  CoreAttention core_;
  std::optional<ColumnLinear> q_down_;
  std::optional<Norm> q_norm_;
  ColumnLinear q_up_;  // W_qu or W_q
  ColumnLinear kv_down_;
  std::optional<Norm> kv_norm_;
  ColumnLinear kv_up_;
  RowLinear output_;
};

}  // namespace teratron
