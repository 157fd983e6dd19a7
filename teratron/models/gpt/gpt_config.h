// Configuration of a GPT.
#pragma once

#include <string>

#include "teratron/models/transformer/config.h"

namespace teratron {

struct GPTConfig : LanguageModelConfig {
  bool embedding_norm = false;        // of the word embeddings
  double embedding_scale = 1.0;       // of the word embeddings, rounded to their dtype
  double embedding_multiplier = 1.0;  // not rounded
  double logits_multiplier = 1.0;
  double logits_softcap = 0.0;     // see OutputLossOptions
  int64_t first_position_row = 0;  // of the learned position embeddings
  /// Chunks of the sequence whose logits and losses are computed one after the other.
  int64_t loss_chunks = 1;
  bool fp8_output_layer = false;
  int64_t mtp_layers = 0;  // multi-token prediction (mtp.h)
  double mtp_loss_factor = 0.1;
  bool output_layer = true;  // false: the final norm's output is the result
  std::string scope = {};    // that all names begin with: "language_model"
  bool frozen = false;
};

/// From the command-line arguments. The logical vocabulary is the tokenizer's size, or --vocab-size if
/// larger.
GPTConfig gpt_config(const Arguments& args, int64_t tokenizer_size);

}  // namespace teratron
