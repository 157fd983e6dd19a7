// A byte per token: "a" is 0; 26 is the first byte of U+00E9, 27 its second, 28 a newline, 36 the end.
#pragma once

#include "teratron/generate/engine.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

class LetterTokenizer : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    for (const char c : text) ids.push_back(c == '\n' ? 28 : c - 'a');
  }
  std::vector<TokenSpan> encode_with_offsets(std::string_view) const override { return {}; }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += id < 26 ? static_cast<char>('a' + id) : "\xc3\xa9\n       "[id - 26];
    return text;
  }
  int64_t vocab_size() const override { return 37; }
  const SpecialTokens& special() const override { return special_; }

 private:
  SpecialTokens special_{.eod = 36};
};

/// For requests that stop at texts and newlines.
inline EngineSettings letter_settings(EngineSettings settings) {
  static const LetterTokenizer letters;
  settings.tokenizer = &letters;
  settings.newlines = {.newline = 28, .double_newline = 29, .colon = 30};
  return settings;
}

}  // namespace teratron
