#include "teratron/models/gpt/gpt_config.h"

#include <cmath>

#include "teratron/models/gpt/latent_attention.h"
#include "teratron/models/gpt/linear_attention.h"
#include "teratron/models/gpt/mtp.h"
#include "teratron/settings/arguments.h"

namespace teratron {

GPTConfig gpt_config(const Arguments& args, int64_t tokenizer_size) {
  GPTConfig config{language_model_config(args, tokenizer_size)};
  config.embedding_norm = args.embedding_layernorm;
  if (args.scale_embeddings) config.embedding_scale = std::sqrt(static_cast<double>(config.hidden));
  config.embedding_multiplier = args.embedding_multiplier;
  config.logits_multiplier = args.logits_multiplier;
  config.logits_softcap = args.final_logit_softcapping;
  config.first_position_row = args.position_embedding_offset;
  config.loss_chunks = args.loss_chunks;
  config.fp8_output_layer = args.fp8_output_proj;
  config.mtp_layers = args.mtp_num_layers.value_or(0);
  config.mtp_loss_factor = args.mtp_loss_scaling_factor;
  add_latent_attention(config, args);
  add_linear_attention(config, args);
  if (config.mtp_layers > 0) add_mtp_layers(config);
  return config;
}

}  // namespace teratron
