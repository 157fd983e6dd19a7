// Configuration of a T5.
#pragma once

#include "teratron/models/transformer/config.h"

namespace teratron {

struct T5Config {
  TransformerConfig encoder;
  TransformerConfig decoder;      // of the same widths
  int64_t vocabulary = 0;         // logical size
  int64_t padded_vocabulary = 0;  // rows of the embedding
  int64_t max_positions = 0;      // of the encoder's and of the decoder's sequence
  bool tied_embeddings = true;
  bool output_bias = true;     // of the logits; only with tied embeddings, as in Megatron-LM
  bool scaled_output = false;  // logits are multiplied by hidden^-0.5, as in T5 v1.0
};

/// From the command-line arguments. The logical vocabulary is the tokenizer's size, or --vocab-size if
/// larger.
T5Config t5_config(const Arguments& args, int64_t tokenizer_size);

}  // namespace teratron
