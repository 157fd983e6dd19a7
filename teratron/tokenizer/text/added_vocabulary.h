// Tokens matched in the text before the model: special tokens and tokens added after training.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/text/byte_trie.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // only if no word character is adjacent
  bool lstrip = false;       // includes the whitespace before it
  bool rstrip = false;       // includes the whitespace after it
  bool normalized = false;   // matched in the normalized text
  bool special = false;
};

/// Matches are leftmost-longest and do not overlap, as in Hugging Face tokenizers.
class AddedVocabulary {
 public:
  AddedVocabulary() = default;
  explicit AddedVocabulary(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  /// A token, or text between tokens (id -1).
  struct Part {
    std::string_view text;
    int32_t id;
  };
  /// Splits the text at tokens; empty parts are dropped.
  std::vector<Part> split(std::string_view text) const;

 private:
  struct Match {
    size_t begin, end;
    int32_t token;
  };
  bool find(std::string_view text, size_t from, Match& match) const;
  bool is_single_word(std::string_view text, const Match& match) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;  // values: indices into tokens_
  bool first_[256] = {};
  int only_first_ = -1;  // the first byte of all tokens; 256: they differ
};

}  // namespace teratron
