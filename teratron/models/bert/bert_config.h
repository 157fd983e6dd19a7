// Configuration of a BERT.
#pragma once

#include "teratron/models/transformer/config.h"

namespace teratron {

struct BertConfig : TransformerConfig {
  int64_t vocabulary = 0;         // logical size
  int64_t padded_vocabulary = 0;  // rows of the embedding
  int64_t max_positions = 0;
  int64_t token_types = 2;        // 0: no embedding of token types
  bool pretraining_heads = true;  // LM head and binary head; false: the encoder alone
  bool binary_head = true;        // pooler and classifier of sentence pairs
  bool tied_embeddings = true;
  /// Of the LM head's transform, where Megatron-LM never fuses (and approximates) it.
  bool tanh_head_gelu = false;
};

/// From the command-line arguments. The logical vocabulary is the tokenizer's size, or --vocab-size if
/// larger.
BertConfig bert_config(const Arguments& args, int64_t tokenizer_size);

}  // namespace teratron
