#include "teratron/model/block.h"

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
          .qkv_init = Init::normal(config.init_std),
          .output_init = output_init(config)};
}

MlpOptions mlp_options(const GPTConfig& config) {
  return {.hidden = config.hidden,
          .ffn_hidden = config.ffn_hidden,
          .activation = config.activation,
          .bias = config.linear_bias,
          .fc1_init = Init::normal(config.init_std),
          .fc2_init = output_init(config)};
}

}  // namespace

Block::Block(const Scope& scope, const GPTConfig& config, int64_t layer, const TensorParallel& parallel)
    : hidden_dropout_(config.hidden_dropout),
      site_(first_site(layer)),
      parallel_(parallel),
      attention_norm_(scope / "input_layernorm", config.hidden, config.norm, parallel),
      attention_(scope / "self_attention", attention_options(config, layer), parallel),
      mlp_norm_(scope / "pre_mlp_layernorm", config.hidden, config.norm, parallel),
      mlp_(scope / "mlp", mlp_options(config), parallel) {}

at::Tensor Block::forward(const at::Tensor& x_SBH, const AttentionContext& context, KeyValueCache* cache) {
  const at::Tensor attended_SBH = attention_.forward(attention_norm_.forward(x_SBH), context, cache);
  const at::Tensor h_SBH = add_residual(x_SBH, attended_SBH, attention_.output_bias(), context, site_ + 1);
  const at::Tensor mixed_SBH = mlp_.forward(mlp_norm_.forward(h_SBH));
  return add_residual(h_SBH, mixed_SBH, mlp_.output_bias(), context, site_ + 2);
}

at::Tensor Block::add_residual(const at::Tensor& residual, const at::Tensor& x, Parameter* bias,
                               const AttentionContext& context, uint64_t site) const {
  return bias_dropout_add(x, bias, residual,
                          {.rate = context.training ? hidden_dropout_ : 0.0,
                           .key = {context.dropout_seed, site, context.first_sample},
                           .part = local_sequence(x.size(0), parallel_)});
}

}  // namespace teratron
