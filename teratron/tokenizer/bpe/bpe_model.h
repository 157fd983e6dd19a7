// The merge table of a byte-level BPE, and the encoding of a word.
//
// A word starts as one token per byte; the adjacent pair of the lowest rank (leftmost on ties) is merged
// until no pair is in the table (Sennrich et al. 2016, over bytes as in GPT-2). O(n log n) in the bytes of
// the word.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace teratron {

/// Tokens are byte-encoded (bytes_to_unicode.h).
struct BpeConfig {
  std::vector<std::pair<std::string, int32_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // in order of rank
  std::string unk_token;                                    // for bytes without a token; empty: drop them
  bool fuse_unk = false;                                    // one unk_token per run of such bytes
  bool ignore_merges = false;                               // a word in the vocabulary is one token
  bool shared_ranks = false;  // consecutive merges into the same token share a rank
  std::string where;          // file, for errors
};

class BpeModel {
 public:
  /// UserError(data): duplicate tokens or ids, ids out of range, merges with unknown tokens.
  explicit BpeModel(const BpeConfig& config);

  /// Appends the ids of a word.
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;
  /// Same for a word of at most kShortWord bytes; writes at most one id per byte and returns their number.
  static constexpr size_t kShortWord = 48;  // up to this size a scan is faster than a heap
  size_t encode_short(std::string_view word, int32_t* ids) const;

  /// Number of bytes of `rest`, the rest of an encoded word, that its next token covers.
  size_t covered_bytes(int32_t id, std::string_view rest) const;
  /// The text of the ids; `others` has the text of ids that are not the model's.
  std::string decode(std::span<const int32_t> ids,
                     const std::unordered_map<int32_t, std::string>& others = {}) const;
  /// Bytes of a token; empty for an unused id.
  std::string_view bytes_of(int32_t id) const;
  /// Id of a byte-encoded token.
  std::optional<int32_t> id_of(const std::string& token) const;
  /// Number of tokens; the largest id + 1.
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  int32_t id_bound() const { return static_cast<int32_t>(token_bytes_.size()); }
  /// Words (bytes) that encode to one id: the tokens that merges can reach.
  const std::vector<std::pair<std::string_view, int32_t>>& whole_words() const { return whole_words_; }

 private:
  /// A merge in 64 bits: left id, right id, rank.
  static constexpr int kIdBits = 21, kRankBits = 22;
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  static constexpr uint32_t kNoRank = (uint32_t{1} << kRankBits) - 1;
  static uint64_t pair_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << kIdBits | static_cast<uint64_t>(right);
  }

  void read_vocab(const BpeConfig& config);
  void read_merges(const BpeConfig& config);
  void insert(int32_t left, int32_t right, uint32_t rank);
  uint32_t rank_of(int32_t left, int32_t right) const;
  size_t slot_of(uint64_t key) const { return (key * 0x9e3779b97f4a7c15u) >> pair_shift_; }
  size_t byte_symbols(std::string_view word, int32_t* symbols) const;
  size_t merge_short(int32_t* symbols, uint32_t* ranks, size_t count) const;
  void merge_long(const std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const;
  void find_whole_words();

  std::unordered_map<std::string, int32_t> ids_;  // byte-encoded token -> id
  std::vector<std::string> token_bytes_;          // by id
  std::vector<std::pair<std::string_view, int32_t>> whole_words_;
  std::unordered_map<std::string_view, int32_t> byte_words_;  // only with ignore_merges
  int32_t byte_ids_[256];                                     // -1: the vocabulary lacks the byte
  std::vector<uint64_t> pairs_;                               // open addressing
  int pair_shift_ = 63;
  std::vector<uint32_t> byte_ranks_;  // of byte pairs, [first << 8 | second]
  std::vector<int32_t> merged_;       // by rank
  int32_t unk_ = -1;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
  bool all_bytes_ = true;
};

}  // namespace teratron
