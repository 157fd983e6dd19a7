// SentencePiece models (Kudo and Richardson 2018), with the same ids as the library.
//
//   unigram  the segmentation with the largest sum of scores (Viterbi; Kudo 2018); a character without a
//            piece is unknown, with a score 10 below the lowest one
//   BPE      characters; the adjacent pair whose concatenation is the piece with the largest score (leftmost
//            on ties) is merged until there is none
//
// A run of unknown characters becomes one unknown piece, or byte pieces (<0x41>) with byte fallback. Text is
// normalized first (sentencepiece_normalizer.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "teratron/tokenizer/sentencepiece/sentencepiece_file.h"
#include "teratron/tokenizer/sentencepiece/sentencepiece_normalizer.h"
#include "teratron/tokenizer/text/byte_trie.h"

namespace teratron {

class SentencePieceModel {
 public:
  /// UserError(data): an empty or duplicate piece, no unknown piece, invalid byte pieces.
  explicit SentencePieceModel(SentencePieceSpec spec);
  SentencePieceModel(const SentencePieceModel&) = delete;
  SentencePieceModel& operator=(const SentencePieceModel&) = delete;

  /// Appends the ids of `text`, which must be valid UTF-8.
  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  /// Ids with their bytes [begin, end) of `text`, as in the library: of the byte pieces of an unknown
  /// character, the last one has the character and the others are empty.
  struct Piece {
    int32_t id;
    size_t begin, end;
  };
  std::vector<Piece> encode_with_offsets(std::string_view text) const;
  /// Control pieces are dropped, byte pieces concatenated (ill-formed UTF-8 becomes U+FFFD), and the dummy
  /// prefix is removed.
  std::string decode(std::span<const int32_t> ids) const;
  class Decoder;  // the same as ids come
  /// Control pieces and the unknown one.
  bool is_special(int32_t id) const;

  const SentencePieceSpec& spec() const { return spec_; }
  const std::string& where() const { return spec_.where; }
  int64_t size() const { return static_cast<int64_t>(spec_.pieces.size()); }
  const std::string& piece(int32_t id) const { return spec_.pieces[static_cast<size_t>(id)].text; }
  std::optional<int32_t> id_of(std::string_view piece) const;
  /// Ids of control pieces; nullopt if the model has none.
  std::optional<int32_t> bos() const { return control(spec_.bos_piece); }
  std::optional<int32_t> eos() const { return control(spec_.eos_piece); }
  std::optional<int32_t> pad() const { return control(spec_.pad_piece); }

 private:
  struct Segment {
    std::string_view text;
    int32_t id;
  };
  struct Merges;

  void add_piece(int32_t id);
  void check_bytes();
  PieceType type(int32_t id) const { return spec_.pieces[static_cast<size_t>(id)].type; }
  float score(int32_t id) const { return spec_.pieces[static_cast<size_t>(id)].score; }
  std::optional<int32_t> control(const std::string& piece) const;
  std::vector<Segment> segments(std::string_view normalized) const;
  std::vector<Segment> viterbi(std::string_view text) const;
  std::vector<Segment> merge(std::string_view text) const;
  std::string decode_piece(int32_t id, bool at_start, bool& removed_space) const;

  SentencePieceSpec spec_;
  std::unordered_map<std::string_view, int32_t> pieces_;    // normal, user-defined, unused
  std::unordered_map<std::string_view, int32_t> reserved_;  // unknown, control, byte
  ByteTrie trie_;                                           // pieces_, for unigram
  ByteTrie user_defined_;
  SentencePieceNormalizer normalizer_;
  ByteTrie no_pieces_;
  std::optional<SentencePieceNormalizer> denormalizer_;
  size_t longest_piece_ = 4;  // in bytes; an unknown character has up to 4
  int32_t unknown_ = -1;
  int32_t byte_ids_[256];
  float lowest_score_ = 0, highest_score_ = 0;  // of normal pieces
};

/// As TextDecoder.
class SentencePieceModel::Decoder {
 public:
  /// The model must outlive it.
  explicit Decoder(const SentencePieceModel& model) : model_(&model) {}
  std::string add(int32_t id);
  std::string rest() const;

 private:
  const SentencePieceModel* model_;
  bool at_start_ = true, removed_space_ = false, has_text_ = false;
  std::string bytes_;  // of a character that is not complete
  std::string held_;   // for the denormalizer, which changes texts as a whole
};

}  // namespace teratron
