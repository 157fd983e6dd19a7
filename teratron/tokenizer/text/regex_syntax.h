// Translates the patterns of tokenizers for PCRE2, so that what \p{..}, \w, (?i) and [[:..:]] mean does not
// depend on PCRE2's tables, and what the two engines read differently keeps its meaning.
//
// The code points that no class of a pattern tells apart are one kind. The translated pattern is over bytes,
// one for each character: its kind.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/unicode/code_set.h"

namespace teratron {

enum class RegexSyntax : uint8_t {
  oniguruma,  // of Hugging Face tokenizers
  rust,       // of tiktoken
  pcre2,      // not translated
};

/// The kinds of all code points.
class CharacterKinds {
 public:
  /// `sets`: the classes of a pattern. At most 256 kinds: is_valid().
  explicit CharacterKinds(const std::vector<unicode::CodeSet>& sets);
  bool is_valid() const { return valid_; }
  uint8_t operator[](uint32_t code_point) const {
    return blocks_[block_of_[code_point >> 8]][code_point & 0xff];
  }
  /// The kinds in set `index`.
  const std::vector<uint8_t>& of_set(size_t index) const { return of_set_[index]; }
  /// A byte for each character of valid UTF-8.
  std::string of_text(std::string_view text) const;

 private:
  std::array<uint16_t, 0x1100> block_of_{};
  std::vector<std::array<uint8_t, 256>> blocks_;
  std::vector<std::vector<uint8_t>> of_set_;
  bool valid_ = true;
};

struct TranslatedRegex {
  std::string pattern;  // for PCRE2, without UTF
  CharacterKinds kinds;
};

/// UserError(data) at `where`, by name, for what is invalid or not known.
TranslatedRegex translate_regex(std::string_view pattern, RegexSyntax syntax, const std::string& where);

}  // namespace teratron
