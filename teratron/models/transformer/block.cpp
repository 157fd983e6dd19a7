#include "teratron/models/transformer/block.h"

#include <cmath>

namespace teratron {

namespace {

// Dropout sites are numbered through the whole model; Megatron draws from per-rank RNG states instead.
constexpr uint64_t sites_per_layer = 4;

uint64_t first_site(int64_t layer) {
  return sites_per_layer * static_cast<uint64_t>(layer + 1);
}

// Scaled by the number of additions to the residual stream, of which each layer makes two.
Init output_init(const GPTConfig& config) {
  if (config.xavier_init) return Init::xavier();
  return Init::normal(config.init_std / std::sqrt(2.0 * static_cast<double>(config.layers)));
}

SelfAttentionOptions attention_options(const GPTConfig& config, int64_t layer) {
  return {.hidden = config.hidden,
          .heads = config.heads,
          .query_groups = config.query_groups,
          .kv_channels = config.kv_channels,
          .bias = config.linear_bias,
          .qkv_bias = config.linear_bias || config.qkv_bias,
          .dropout = config.attention_dropout,
          .dropout_site = first_site(layer),
          .qkv_init = weight_init(config),
          .output_init = output_init(config),
          .qk_norm = config.qk_norm ? std::optional(config.norm) : std::nullopt,
          .alibi = config.position == PositionEmbedding::alibi,
          .window = config.windows.empty() ? 0 : config.windows.at(layer),
          .score_divisor = config.query_key_layer_scaling ? static_cast<double>(layer + 1) : 1.0,
          .recompute_core = config.recompute.granularity == RecomputeConfig::Granularity::attention_core};
}

MlpOptions mlp_options(const GPTConfig& config) {
  return {.hidden = config.hidden,
          .ffn_hidden = config.ffn_hidden,
          .activation = config.activation,
          .bias = config.linear_bias,
          .fc1_init = weight_init(config),
          .fc2_init = output_init(config)};
}

}  // namespace

Block::Block(const Scope& scope, const GPTConfig& config, int64_t layer, const TensorParallel& parallel)
    : hidden_dropout_(config.hidden_dropout),
      residual_after_norm_(config.residual_after_norm),
      site_(first_site(layer)),
      parallel_(parallel),
      attention_norm_(scope / "input_layernorm", config.hidden, config.norm, parallel),
      attention_(scope / "self_attention", attention_options(config, layer), parallel),
      mlp_norm_(scope / "pre_mlp_layernorm", config.hidden, config.norm, parallel),
      mlp_(scope / "mlp", mlp_options(config), parallel) {}

// h = x + dropout(attention(norm(x))), y = h + dropout(mlp(norm(h)))
Hidden Block::forward(const Hidden& x, const AttentionContext& context, KeyValueCache* cache) {
  const auto [x_normed, x_residual] = pre_norm(attention_norm_, x, context, site_ + 1);
  const Hidden h = attention_.forward_add_residual(x_normed, x_residual, context, cache);
  const auto [h_normed, h_residual] = pre_norm(mlp_norm_, h, context, site_ + 2);
  return mlp_.forward_add_residual(h_normed, h_residual);
}

Block::LayerInput Block::pre_norm(Norm& norm, const Hidden& x, const AttentionContext& context,
                                  uint64_t site) const {
  const auto [normed, residual] = norm.forward_with_residual(x);
  return {.normed = normed,
          .residual = {.residual_SBH = residual_after_norm_ ? normed.to(residual.scalar_type()) : residual,
                       .dropout = {.rate = context.training ? hidden_dropout_ : 0.0,
                                   .key = {context.dropout_seed, site, context.sample_ids_B},
                                   .shard = sequence_shard(residual.size(0), parallel_),
                                   .row_ids = context.dropout_row_ids}}};
}

}  // namespace teratron
