// SentencePiece's normalizer: longest-match replacements (precompiled nmt_nfkc and others), then whitespace.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/sentencepiece/byte_trie.h"
#include "teratron/tokenizer/sentencepiece/sentencepiece_file.h"

namespace teratron {

/// U+2581, a space in pieces.
inline constexpr std::string_view kSpaceSymbol = "\xe2\x96\x81";

/// precompiled_charsmap: trie size in bytes (u32) | double array of u32 (Aoe 1989, in the layout of
/// darts-clone) | replacements, NUL-terminated. The value of a key is the offset of its replacement.
class CharsMap {
 public:
  CharsMap() = default;
  /// UserError(data) if the sizes, the trie or the replacements are inconsistent: a damaged file must not
  /// normalize differently. `where`: the file.
  CharsMap(std::string_view compiled, const std::string& where);

  struct Match {
    size_t bytes = 0;  // of the text; 0: no match
    std::string_view replacement;
  };
  /// The longest key that is a prefix of `text`.
  Match longest_prefix(std::string_view text) const { return find(text, Prefix::longest); }
  Match shortest_prefix(std::string_view text) const { return find(text, Prefix::shortest); }

 private:
  enum class Prefix : uint8_t { shortest, longest };
  Match find(std::string_view text, Prefix prefix) const;
  /// What is wrong with the trie or the replacements; empty: nothing.
  std::string find_damage() const;
  std::vector<uint32_t> units_;
  std::string replacements_;
};

class SentencePieceNormalizer {
 public:
  /// `protected_pieces` (user-defined ones) are not normalized; it must outlive this object.
  SentencePieceNormalizer(const NormalizerSpec& spec, const ByteTrie& protected_pieces,
                          const std::string& where);

  /// `text` must be valid UTF-8. `norm_to_orig`: the byte of `text` for each byte of the result and for its
  /// end.
  std::string normalize(std::string_view text, std::vector<size_t>* norm_to_orig = nullptr) const;

 private:
  CharsMap::Match prefix(std::string_view text) const;

  CharsMap map_;
  bool add_dummy_prefix_, remove_extra_whitespaces_, whitespace_as_suffix_;
  std::string_view space_;
  const ByteTrie& protected_pieces_;
};

}  // namespace teratron
