// Models of tokenizer.json over characters: Unigram (T5, mT5) and BPE with byte fallback (Llama 2, Mistral,
// Gemma), piece for piece as Hugging Face tokenizers.
//
//   Unigram  the segmentation with the largest sum of scores (Kudo 2018); a character without a piece has a
//            score 10 below the lowest one, and a run of them is unknown
//   BPE      characters, or the bytes of those that have no piece; the adjacent pair of the lowest rank
//            (leftmost on ties) is merged until no pair is in the table
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "teratron/tokenizer/text/byte_trie.h"

namespace teratron {

/// Tokens by id, of which some may be unused.
class PieceVocabulary {
 public:
  /// UserError(data) at `where`: empty or duplicate tokens, duplicate ids, ids far out of range.
  PieceVocabulary(std::vector<std::pair<std::string, int32_t>> tokens, const std::string& where);
  PieceVocabulary(PieceVocabulary&&) = default;
  PieceVocabulary(const PieceVocabulary&) = delete;
  std::optional<int32_t> id_of(std::string_view token) const;
  /// Empty for an unused id.
  std::string_view token_of(int32_t id) const;
  int32_t id_bound() const { return static_cast<int32_t>(tokens_.size()); }
  /// The ids of the tokens <0x41> of the bytes; nullopt if one is missing.
  std::optional<std::vector<int32_t>> bytes_of(std::string_view text) const;

 private:
  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, int32_t> ids_;
};

struct Piece {
  int32_t id;
  std::string_view text;  // of the word
};

class PieceModel {
 public:
  explicit PieceModel(PieceVocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~PieceModel() = default;
  PieceModel(const PieceModel&) = delete;
  PieceModel& operator=(const PieceModel&) = delete;
  /// The pieces of a word, which is valid UTF-8 and not empty.
  virtual std::vector<Piece> encode(std::string_view word) const = 0;
  const PieceVocabulary& vocabulary() const { return vocabulary_; }

 protected:
  PieceVocabulary vocabulary_;
};

struct UnigramConfig {
  std::vector<std::pair<std::string, double>> pieces;  // and scores, by id
  int32_t unknown = 0;
  bool byte_fallback = false;  // unknown characters become bytes, if all have tokens
  std::string where;
};

class UnigramModel : public PieceModel {
 public:
  /// UserError(data) as PieceVocabulary, for scores that are not finite and an unknown id out of range.
  explicit UnigramModel(const UnigramConfig& config);
  std::vector<Piece> encode(std::string_view word) const override;

 private:
  struct Node;
  std::vector<Node> best_paths(std::string_view word) const;
  void append(std::string_view text, std::vector<Piece>& pieces) const;

  ByteTrie trie_;
  std::vector<double> scores_;
  double unknown_score_ = 0;
  int32_t unknown_;
  bool byte_fallback_;
};

struct CharacterBpeConfig {
  std::vector<std::pair<std::string, int32_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // in order of rank
  std::string unk_token;                                    // of characters without a token; empty: drop them
  bool fuse_unk = false;                                    // one unk_token per run of such characters
  bool byte_fallback = false;
  bool ignore_merges = false;  // a word in the vocabulary is one token
  std::string where;
};

class CharacterBpeModel : public PieceModel {
 public:
  /// UserError(data) as PieceVocabulary, for merges of or into unknown tokens and an unknown unk_token.
  explicit CharacterBpeModel(const CharacterBpeConfig& config);
  std::vector<Piece> encode(std::string_view word) const override;

 private:
  struct Symbol;
  struct Merge {
    int32_t rank, id;
  };
  std::vector<Symbol> symbols(std::string_view word) const;
  void merge_all(std::vector<Symbol>& symbols) const;
  const Merge* find(int32_t left, int32_t right) const;

  std::unordered_map<uint64_t, Merge> merges_;  // by both ids
  std::optional<int32_t> unknown_;
  bool fuse_unk_, byte_fallback_, ignore_merges_;
};

}  // namespace teratron
