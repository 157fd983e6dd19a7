#include "teratron/models/transformer/block.h"

#include <cmath>

namespace teratron {

namespace {

// Places that drop activations, counted through the whole model (Megatron draws from per-rank streams
// instead).
constexpr uint64_t sites_per_layer = 4;

uint64_t first_site(int64_t layer) {
  return sites_per_layer * static_cast<uint64_t>(layer + 1);
}

// Layers that write into the residual stream start smaller, by the number of their additions.
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

Stream Block::forward(const Stream& stream, const AttentionContext& context, KeyValueCache* cache) {
  const Norm::Beside x = attention_norm_.forward_beside(stream);
  const Norm::Beside h = mlp_norm_.forward_beside(
      attention_.forward_onto(residual(x, context, site_ + 1), x.normed, context, cache));
  return mlp_.forward_onto(residual(h, context, site_ + 2), h.normed);
}

Residual Block::residual(const Norm::Beside& stream, const AttentionContext& context, uint64_t site) const {
  return {.stream_SBH = residual_after_norm_ ? stream.normed.to(stream.x.scalar_type()) : stream.x,
          .dropout = {.rate = context.training ? hidden_dropout_ : 0.0,
                      .key = {context.dropout_seed, site, context.samples_B},
                      .part = local_sequence(stream.x.size(0), parallel_),
                      .rows = context.dropout_rows}};
}

}  // namespace teratron
