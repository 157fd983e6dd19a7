// Greedy WordPiece (Devlin et al. 2018, after Schuster and Nakajima 2012): a word is split from the left into
// the longest pieces of the vocabulary; continuing pieces have the prefix "##". A word that cannot be split,
// or is too long, is [UNK].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace teratron {

class WordPiece {
 public:
  /// `vocab_file`: one token per line, ids by line; a duplicate has the later id, as in the reference.
  /// UserError(data) if unreadable, empty, or without [UNK].
  explicit WordPiece(const std::string& vocab_file);

  /// Appends the ids of a word (valid UTF-8); [UNK] if it is longer than `max_characters`.
  void encode_word(std::string_view word, size_t max_characters, std::vector<int32_t>& ids) const;

  /// Number of bytes of `rest`, the rest of an encoded word, that its next piece covers.
  size_t covered_bytes(int32_t id, std::string_view rest) const;

  std::optional<int32_t> id_of(std::string_view token) const;
  /// Empty for an unused id.
  std::string_view token_of(int32_t id) const;
  /// Id of a token, which is added if missing.
  int32_t add(const std::string& token);
  /// Number of tokens.
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  const std::string& path() const { return path_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Ids = std::unordered_map<std::string, int32_t, Hash, std::equal_to<>>;

  std::string path_;
  Ids ids_;
  Ids continuing_;  // continuing pieces, without "##"
  std::vector<std::string> tokens_;
  int32_t unk_ = 0;
  size_t longest_ = 0;  // bytes of the longest piece
};

}  // namespace teratron
