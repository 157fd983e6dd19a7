// Options of the parts of a transformer layer, from the configuration of its stack. `layer` counts from 0
// through the whole stack.
#pragma once

#include "teratron/models/transformer/config.h"
#include "teratron/nn/attention/attention_layer.h"
#include "teratron/nn/mla/latent_attention.h"
#include "teratron/nn/mlp.h"

namespace teratron {

/// Dropouts of a layer. Other mixers and their branches use numbers from own_sites on.
enum DropoutSite : uint64_t {
  attention_scores,
  attention_output,
  mlp_output,
  cross_scores,
  cross_output,
  own_sites,
  sites_of_layer = 256
};
/// The site of dropout `number` < sites_of_layer of a layer, with the configuration of its stack. Sites are
/// numbered through the whole model; Megatron draws from per-rank RNG states instead.
uint64_t dropout_site(const TransformerConfig& config, int64_t layer, uint64_t number);

/// Initialises the matrices whose outputs are added to the residual stream.
Init output_init(const TransformerConfig& config);
AttentionLayerOptions self_attention_options(const TransformerConfig& config, int64_t layer);
/// For a configuration with latents.
LatentAttentionOptions latent_attention_options(const TransformerConfig& config, int64_t layer);
AttentionLayerOptions cross_attention_options(const TransformerConfig& config, int64_t layer);
MlpOptions mlp_options(const TransformerConfig& config);
/// For a layer with experts.
MoeOptions moe_options(const TransformerConfig& config, int64_t layer);

}  // namespace teratron
