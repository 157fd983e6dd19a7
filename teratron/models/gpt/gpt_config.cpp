#include "teratron/models/gpt/gpt_config.h"

#include <cmath>

#include "teratron/models/gpt/linear_attention.h"
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
  add_linear_attention(config, args);
  return config;
}

}  // namespace teratron
