#include "teratron/nn/self_attention.h"

#include <cmath>

#include "teratron/nn/alibi.h"
#include "teratron/nn/qkv.h"

namespace teratron {

namespace {

// Rows of the fused projection: per query group its query heads, a key and a value.
int64_t qkv_rows(const SelfAttentionOptions& options) {
  return (options.heads + 2 * options.query_groups) * options.kv_channels;
}

void extend(KeyValueCache& cache, at::Tensor& k_SBGD, at::Tensor& v_SBGD) {
  cache.k_SBGD = cache.k_SBGD.defined() ? at::cat({cache.k_SBGD, k_SBGD}, 0) : k_SBGD;
  cache.v_SBGD = cache.v_SBGD.defined() ? at::cat({cache.v_SBGD, v_SBGD}, 0) : v_SBGD;
  k_SBGD = cache.k_SBGD;
  v_SBGD = cache.v_SBGD;
}

}  // namespace

SelfAttention::SelfAttention(const Scope& scope, const SelfAttentionOptions& options,
                             const TensorParallel& parallel)
    : options_(options),
      group_(parallel.group),
      qkv_(scope / "linear_qkv",
           {.in = options.hidden,
            .out = qkv_rows(options),
            .bias = options.qkv_bias,
            .init = options.qkv_init},
           parallel),
      output_(scope / "linear_proj",
              {.in = options.heads * options.kv_channels,
               .out = options.hidden,
               .bias = options.bias,
               .init = options.output_init},
              parallel) {
  const int64_t heads = options.heads / group_.size;
  if (options.qk_norm) {
    // Replicated, but each rank sees only its own heads, so the gradients are summed over the ranks.
    const TensorParallel summed{group_, true};
    q_norm_.emplace(scope / "q_layernorm", options.kv_channels, *options.qk_norm, summed);
    k_norm_.emplace(scope / "k_layernorm", options.kv_channels, *options.qk_norm, summed);
  }
  if (options.alibi) {
    const ParameterSet::Options& model = scope.options();
    alibi_slopes_N_ = alibi_slopes(options.heads, group_.rank * heads, heads,
                                   at::TensorOptions().dtype(model.dtype).device(model.device));
  }
}

Hidden SelfAttention::forward_add_residual(const at::Tensor& x_SBH, const ResidualDropout& residual,
                                           const AttentionContext& context, KeyValueCache* cache) {
  const int64_t groups = options_.query_groups / group_.size;
  const int64_t per_group = options_.heads / options_.query_groups;
  const int64_t width = options_.kv_channels;
  // Without query-key norms, which come before RoPE, the rotation is fused into the projection or its split.
  const RotaryEmbedding* const fused_rope = q_norm_ ? nullptr : context.rope;
  std::optional<QkvRope> rope;
  if (fused_rope && queries_are_view(groups, per_group))
    rope = {fused_rope->rotation(context.positions_SB), per_group + 2, width};
  const auto [qkv_SBF, bias] = qkv_.forward(x_SBH, rope ? &*rope : nullptr);
  const at::Tensor qkv_SBGPD = qkv_SBF.unflatten(-1, {groups, per_group + 2, width});
  auto [q_SBND, k_SBGD, v_SBGD] =
      split_qkv({qkv_SBGPD, bias, rope.has_value()}, fused_rope, context.positions_SB);
  if (q_norm_) {
    q_SBND = q_norm_->forward(q_SBND);
    k_SBGD = k_norm_->forward(k_SBGD);
    if (context.rope) {
      q_SBND = context.rope->apply(q_SBND, context.positions_SB);
      k_SBGD = context.rope->apply(k_SBGD, context.positions_SB);
    }
  }
  if (cache) extend(*cache, k_SBGD, v_SBGD);
  const at::Tensor mixed_SBF =
      attention({.q_SBND = q_SBND,
                 .k_SBGD = k_SBGD,
                 .v_SBGD = v_SBGD,
                 .scale = 1.0 / std::sqrt(static_cast<double>(width)),
                 .mask = Mask::causal,
                 .segments = context.segments,
                 .window = options_.window,
                 .alibi_slopes = alibi_slopes_N_,
                 .score_divisor = options_.score_divisor,
                 .dropout = context.training ? options_.dropout : 0.0,
                 .dropout_key = {context.dropout_seed, options_.dropout_site, context.sample_ids_B},
                 .dropout_row_ids = context.dropout_row_ids,
                 .head_offset = group_.rank * groups * per_group,
                 .total_heads = options_.heads,
                 .recompute = options_.recompute_core});
  return output_.forward_add_residual(mixed_SBF, residual);
}

}  // namespace teratron
