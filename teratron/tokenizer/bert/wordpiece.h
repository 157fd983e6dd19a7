// Greedy WordPiece (Devlin et al. 2018, after Schuster and Nakajima 2012): a word is cut from the left into the longest
// pieces of the vocabulary; pieces inside a word carry "##". A word that cannot be cut, or is too long, is [UNK].
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
  /// `vocab_file`: one token a line, ids by line. A token that appears again takes the later id, as in the reference.
  /// Throws UserError(data): unreadable, empty, or without [UNK].
  explicit WordPiece(const std::string& vocab_file);

  /// Appends the ids of one word (valid UTF-8). `max_characters`: longer words are [UNK].
  void encode_word(std::string_view word, size_t max_characters, std::vector<int32_t>& ids) const;

  /// Bytes at the start of `rest`, the rest of an encoded word, that its next piece stands for.
  size_t covered_bytes(int32_t id, std::string_view rest) const;

  std::optional<int32_t> id_of(std::string_view token) const;
  /// Empty for an id that is not used.
  std::string_view token_of(int32_t id) const;
  /// Id of a token, added at the end if it is not there.
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
  Ids inner_;  // pieces inside a word, without their "##"
  std::vector<std::string> tokens_;
  int32_t unk_ = 0;
  size_t longest_ = 0;  // bytes of the longest piece
};

}  // namespace teratron
