// SentencePiece's precompiled normalization rules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

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

}  // namespace teratron
