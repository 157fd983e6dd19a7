#include "teratron/models/t5/t5_config.h"

#include "teratron/settings/arguments.h"

namespace teratron {

namespace {

// Keeps the dropout masks of the decoder apart from the encoder's.
constexpr uint64_t first_decoder_site = uint64_t{1} << 32;

}  // namespace

T5Config t5_config(const Arguments& args, int64_t tokenizer_size) {
  T5Config config{.encoder = transformer_config(args),
                  .vocabulary = model_vocabulary(args, tokenizer_size),
                  .max_positions = args.max_position_embeddings.value(),
                  .tied_embeddings = !args.untie_embeddings_and_output_weights,
                  .output_bias = args.lm_head_bias && !args.untie_embeddings_and_output_weights,
                  .scaled_output = args.scale_decoder_outputs};
  config.padded_vocabulary = padded_vocab_size(args, config.vocabulary);
  config.encoder.windows.clear();
  config.encoder.parallel_residual = false;  // cross attention has no place in it
  config.decoder = config.encoder;
  config.encoder.mask = Mask::full;
  config.encoder.relative.bidirectional = true;
  config.decoder.init_layers = config.encoder.layers;  // as in Megatron-LM
  config.decoder.layers = args.decoder_num_layers.value();
  if (!config.encoder.context_parallel_comm.empty())
    config.decoder.context_parallel_comm.assign(static_cast<size_t>(config.decoder.layers),
                                                config.encoder.context_parallel_comm.front());
  config.decoder.cross_attention = true;
  config.decoder.first_dropout_site = first_decoder_site;
  return config;
}

}  // namespace teratron
