// BERT's normalization and words: text is cleaned of control characters, Chinese characters are set apart,
// in lower case accents are stripped; words are split at whitespace and punctuation. As BertNormalizer and
// BertPreTokenizer of Hugging Face tokenizers, or as the original tokenizer in Python, whose character
// classes differ.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "teratron/tokenizer/unicode/normalized_string.h"

namespace teratron {

struct BertRules {
  bool python = false;  // the original's classes: those of Python's unicodedata
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool lowercase = true;
  std::optional<bool> strip_accents = {};  // nullopt: if lowercase
};

/// A new text under the rules.
NormalizedString bert_normalize(NormalizedView text, const BertRules& rules);

/// Calls word(NormalizedView) for the words of a normalized text.
void split_bert_words(NormalizedView text, const BertRules& rules,
                      const std::function<void(NormalizedView word)>& word);

}  // namespace teratron
