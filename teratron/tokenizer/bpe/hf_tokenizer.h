// A tokenizer.json with byte-level BPE (GPT-2, Llama 3, Qwen...), token for token as Hugging Face tokenizers.
#pragma once

#include "teratron/tokenizer/bpe/bpe_json.h"

namespace teratron {

class HuggingFaceTokenizer : public ByteLevelTokenizer {
 public:
  /// UserError(data) if the parts are inconsistent. The other arguments: tokenizer/tokenizer_json.h.
  HuggingFaceTokenizer(BpeJson json, const SpecialTokensMap& special, bool add_special_tokens);
};

}  // namespace teratron
