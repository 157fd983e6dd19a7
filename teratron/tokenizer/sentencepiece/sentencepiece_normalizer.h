// SentencePiece's normalisation: replacements by longest match (nmt_nfkc and the like, compiled into the model),
// then blanks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/sentencepiece/byte_trie.h"
#include "teratron/tokenizer/sentencepiece/sentencepiece_file.h"

namespace teratron {

/// U+2581, which stands for a blank in pieces.
inline constexpr std::string_view kSpaceSymbol = "\xe2\x96\x81";

/// The compiled replacements: u32 bytes of trie | double array of u32 (Aoe 1989, in the layout of darts-clone) |
/// replacements, each ended by NUL. A key's value is the place of its replacement.
class CharsMap {
 public:
  CharsMap() = default;
  /// Throws UserError(data) when the sizes do not fit. `where` names the file.
  CharsMap(std::string_view compiled, const std::string& where);

  struct Match {
    size_t bytes = 0;  // of the text; 0: no rule
    std::string_view replacement;
  };
  /// The rule with the longest key that `text` begins with.
  Match longest(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;
};

class SentencePieceNormalizer {
 public:
  /// `protected_pieces` (user-defined ones) are left as they are; it must outlive this.
  SentencePieceNormalizer(const SentencePieceRules& rules, const ByteTrie& protected_pieces,
                          const std::string& where);

  /// `text` must be valid UTF-8. `places`: for each byte of the result, and for its end, the byte of `text` that it
  /// comes from.
  std::string normalize(std::string_view text, std::vector<size_t>* places = nullptr) const;

 private:
  CharsMap::Match prefix(std::string_view text) const;

  CharsMap map_;
  bool add_dummy_prefix_, remove_extra_whitespaces_, whitespace_as_suffix_;
  std::string_view blank_;
  const ByteTrie& protected_pieces_;
};

}  // namespace teratron
