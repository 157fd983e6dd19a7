// GPT2BPETokenizer: byte-level BPE from vocab.json and merges.txt.
#pragma once

#include "teratron/tokenizer/bpe/byte_level_tokenizer.h"

namespace teratron {

/// eod is <|endoftext|>, which the vocabulary must have. Up to Megatron-LM 0.7, <|endoftext|> in the text is
/// encoded as ordinary text; with `literal_special` (Megatron-LM head) it becomes the special token.
class Gpt2BpeTokenizer : public ByteLevelTokenizer {
 public:
  Gpt2BpeTokenizer(const BpeConfig& config, bool literal_special);
};

}  // namespace teratron
