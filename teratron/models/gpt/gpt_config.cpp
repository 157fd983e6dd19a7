#include "teratron/models/gpt/gpt_config.h"

#include "teratron/settings/arguments.h"

namespace teratron {

GPTConfig gpt_config(const Arguments& args, int64_t tokenizer_size) {
  GPTConfig config{transformer_config(args)};
  config.vocabulary = model_vocabulary(args, tokenizer_size);
  config.padded_vocabulary = padded_vocab_size(args, config.vocabulary);
  config.max_positions = args.max_position_embeddings.value();
  config.tied_embeddings = !args.untie_embeddings_and_output_weights;
  config.loss_chunks = args.loss_chunks;
  config.fp8_output_layer = args.fp8_output_proj;
  return config;
}

}  // namespace teratron
