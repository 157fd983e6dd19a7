// Greedy WordPiece (Devlin et al. 2018, after Schuster and Nakajima 2012): a word is split from the left into
// the longest pieces of the vocabulary; continuing pieces have the prefix "##". A word that cannot be split,
// or is too long, is the unknown token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace teratron {

struct WordPieceVocabulary {
  std::vector<std::pair<std::string, int32_t>> tokens;  // of equal tokens, the last one's id counts
  std::string unknown = "[UNK]";
  std::string where;  // file, for errors
};

class WordPiece {
 public:
  static constexpr std::string_view kContinuingPrefix = "##";

  /// UserError(data) if the vocabulary lacks the unknown token.
  explicit WordPiece(const WordPieceVocabulary& vocabulary);

  /// Appends the ids of a word (valid UTF-8); the unknown token's if it is longer than `max_characters`.
  void encode_word(std::string_view word, size_t max_characters, std::vector<int32_t>& ids) const;

  /// Number of bytes of `rest`, the rest of an encoded word, that its next piece covers.
  size_t covered_bytes(int32_t id, std::string_view rest) const;

  /// Empty for an unused id.
  std::string_view token_of(int32_t id) const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Ids = std::unordered_map<std::string, int32_t, Hash, std::equal_to<>>;

  Ids ids_;
  Ids continuing_;  // continuing pieces, without "##"
  std::vector<std::string> tokens_;
  int32_t unk_ = 0;
  size_t longest_ = 0;  // bytes of the longest piece
};

}  // namespace teratron
