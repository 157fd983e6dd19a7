#include "teratron/models/gpt/latent_attention.h"

#include <cmath>

#include "teratron/settings/arguments.h"

namespace teratron {

// Scores of YaRN are multiplied by the square of its magnitude for all channels (DeepSeek-V2), of which the
// rotation applies the rest to the rotated ones.
void add_latent_attention(TransformerConfig& config, const Arguments& args) {
  if (!args.multi_latent_attention) return;
  NormOptions norm = config.norm;
  norm.eps = args.latent_norm_epsilon.value_or(norm.eps);
  config.latent = {.query_rank = args.q_lora_rank.value_or(0),
                   .kv_rank = args.kv_lora_rank,
                   .rope_channels = args.qk_pos_emb_head_dim,
                   .v_channels = args.v_head_dim,
                   .norm = args.qk_layernorm ? std::optional(norm) : std::nullopt};
  config.kv_channels = args.qk_head_dim + args.qk_pos_emb_head_dim;
  config.query_groups = config.heads;
  config.qk_norm = false;
  config.rope.interleaved = !args.latent_rotary_halves;
  if (args.softmax_scale) return;
  const Yarn& yarn = config.rope.yarn;
  const double magnitude = yarn.factor > 1.0 ? 0.1 * yarn.mscale_all_dim * std::log(yarn.factor) + 1.0 : 1.0;
  config.softmax_scale = magnitude * magnitude / std::sqrt(static_cast<double>(config.kv_channels));
}

void check_latent_attention(Validation& v) {
  const Arguments& a = v.args;
  if (!a.multi_latent_attention) return;
  if (a.qk_pos_emb_head_dim % 2 != 0)
    v.reject(
        "qk_pos_emb_head_dim",
        fmt::format("qk_pos_emb_head_dim = {} channels cannot be rotated in pairs", a.qk_pos_emb_head_dim),
        "Use an even number");
  if (a.rotary_percent != 1.0)
    v.reject("rotary_percent", fmt::format("rotary_percent = {} with latents", a.rotary_percent),
             "Say with --qk-pos-emb-head-dim how many channels of a head are rotated");
}

}  // namespace teratron
