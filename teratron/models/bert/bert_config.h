// Configuration of a BERT.
#pragma once

#include "teratron/models/transformer/config.h"

namespace teratron {

struct BertConfig : LanguageModelConfig {
  int64_t token_types = 2;        // 0: no embedding of token types
  bool pretraining_heads = true;  // LM head and binary head; false: the encoder alone
  bool binary_head = true;        // pooler and classifier of sentence pairs
  bool learns_pairs = true;       // false: the binary head stays as it is, and samples need no sentence pairs
  /// The LM head's transform approximates GELU by tanh: in Megatron-LM only with --openai-gelu.
  bool tanh_head_gelu = false;
};

/// From the command-line arguments. The logical vocabulary is the tokenizer's size, or --vocab-size if
/// larger.
BertConfig bert_config(const Arguments& args, int64_t tokenizer_size);

}  // namespace teratron
