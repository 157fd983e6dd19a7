// Tokens that are looked for in the text before anything else: special tokens and those added after training.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/sentencepiece/byte_trie.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the blanks before it
  bool rstrip = false;       // takes the blanks behind it
  bool normalized = false;   // looked for in the normalised text
  bool special = false;
};

/// Finds the tokens in a text: leftmost, then longest, without overlap (as Hugging Face tokenizers does).
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  /// A part of the text: a token's id, or -1 for text between tokens.
  struct Part {
    std::string_view text;
    int32_t id;
  };
  /// The text cut at its tokens; parts without bytes are left out.
  std::vector<Part> split(std::string_view text) const;

 private:
  struct Match {
    size_t begin, end;
    int32_t token;
  };
  bool find(std::string_view text, size_t from, Match& match) const;
  bool stands_alone(std::string_view text, const Match& match) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;  // values: places in tokens_
  bool first_[256] = {};
  int only_first_ = -1;  // the one byte that all tokens begin with
};

}  // namespace teratron
