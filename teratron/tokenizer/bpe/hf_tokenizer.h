// HuggingFaceTokenizer: a tokenizer.json with byte-level BPE (GPT-2, Llama 3, Qwen...), token for token as
// Hugging Face tokenizers.
#pragma once

#include "teratron/tokenizer/bpe/tokenizer_json.h"

namespace teratron {

class HuggingFaceTokenizer : public ByteLevelTokenizer {
 public:
  /// `special`: from tokenizer_config.json or special_tokens_map.json. `add_special_tokens`: the tokens of
  /// the post-processor, e.g. a leading <|begin_of_text|>. UserError(data) if the parts are inconsistent.
  HuggingFaceTokenizer(TokenizerJson json, const SpecialTokensMap& special, bool add_special_tokens);

 private:
  void add_tokens(const std::vector<AddedToken>& added, const std::string& where);
};

}  // namespace teratron
