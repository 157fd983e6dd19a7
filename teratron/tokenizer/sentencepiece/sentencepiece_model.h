// SentencePiece models: text <-> pieces (Kudo and Richardson 2018), id for id as the library does it.
//
//   unigram  the segmentation with the largest sum of scores (Viterbi; Kudo 2018); a character that no piece covers
//            is unknown and costs 10 below the lowest score
//   BPE      characters; the adjacent pair whose joined text is the piece with the largest score (leftmost of
//            equals) is joined until there is none
//
// Runs of unknown characters become one unknown piece, or their bytes (<0x41>) with byte fallback. Text is
// normalised first (sentencepiece_normalizer.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "teratron/tokenizer/sentencepiece/byte_trie.h"
#include "teratron/tokenizer/sentencepiece/sentencepiece_file.h"
#include "teratron/tokenizer/sentencepiece/sentencepiece_normalizer.h"

namespace teratron {

class SentencePieceModel {
 public:
  /// Throws UserError(data): an empty or repeated piece, no unknown piece, byte pieces that do not fit.
  explicit SentencePieceModel(SentencePieceSpec spec);
  SentencePieceModel(const SentencePieceModel&) = delete;
  SentencePieceModel& operator=(const SentencePieceModel&) = delete;

  /// Appends the ids of `text`, which must be valid UTF-8.
  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  /// The same ids with the bytes [begin, end) of `text` they stand for, as the library gives them: of the bytes of an
  /// unknown character only the last has it.
  struct Piece {
    int32_t id;
    size_t begin, end;
  };
  std::vector<Piece> encode_with_places(std::string_view text) const;
  /// Text of the ids: control pieces vanish, bytes are joined (ill-formed ones become U+FFFD), the blank that
  /// normalisation put before the text is taken away.
  std::string decode(std::span<const int32_t> ids) const;

  const std::string& where() const { return spec_.where; }
  int64_t size() const { return static_cast<int64_t>(spec_.pieces.size()); }
  const std::string& piece(int32_t id) const { return spec_.pieces[static_cast<size_t>(id)].text; }
  std::optional<int32_t> id_of(std::string_view piece) const;
  /// Ids of the control pieces, if the model has them.
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
  std::vector<Segment> best_path(std::string_view text) const;
  std::vector<Segment> merge(std::string_view text) const;
  std::string decode_piece(int32_t id, bool at_start, bool& took_blank) const;

  SentencePieceSpec spec_;
  std::unordered_map<std::string_view, int32_t> ordinary_,
      reserved_;   // normal, user-defined, unused; the rest
  ByteTrie trie_;  // ordinary pieces, for unigram
  ByteTrie user_defined_;
  SentencePieceNormalizer normalizer_;
  ByteTrie no_pieces_;
  std::optional<SentencePieceNormalizer> denormalizer_;
  size_t longest_piece_ = 4;  // in bytes; an unknown character has up to 4
  int32_t unknown_ = -1;
  int32_t byte_ids_[256];
  float lowest_score_ = 0, highest_score_ = 0;  // of normal pieces
};

}  // namespace teratron
