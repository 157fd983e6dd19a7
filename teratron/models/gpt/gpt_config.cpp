#include "teratron/models/gpt/gpt_config.h"

#include <cmath>

#include "teratron/settings/arguments.h"

namespace teratron {

GPTConfig gpt_config(const Arguments& args, int64_t tokenizer_size) {
  GPTConfig config{transformer_config(args)};
  config.vocabulary = model_vocabulary(args, tokenizer_size);
  config.padded_vocabulary = padded_vocab_size(args, config.vocabulary);
  config.max_positions = args.max_position_embeddings.value();
  config.tied_embeddings = !args.untie_embeddings_and_output_weights;
  config.embedding_norm = args.embedding_layernorm;
  if (args.scale_embeddings) config.embedding_scale = std::sqrt(static_cast<double>(config.hidden));
  config.first_position_row = args.position_embedding_offset;
  config.loss_chunks = args.loss_chunks;
  config.fp8_output_layer = args.fp8_output_proj;
  return config;
}

}  // namespace teratron
