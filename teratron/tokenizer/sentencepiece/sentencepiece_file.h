// Reads a SentencePiece .model file, a protocol buffer (sentencepiece_model.proto).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace teratron {

enum class PieceType : uint8_t { normal = 1, unknown, control, user_defined, unused, byte };

struct SentencePiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::normal;
};

/// SentencePiece's NormalizerSpec (sentencepiece_normalizer.h).
struct NormalizerSpec {
  std::string charsmap;                  // precompiled replacements; empty: none
  bool add_dummy_prefix = true;          // prepend a space
  bool remove_extra_whitespaces = true;  // trim, and collapse runs
  bool escape_whitespaces = true;        // a space becomes U+2581
  bool whitespace_as_suffix = false;     // append the dummy space instead
};

struct SentencePieceSpec {
  enum class Kind : uint8_t { unigram = 1, bpe = 2 };
  Kind kind = Kind::unigram;
  std::vector<SentencePiece> pieces;  // by id
  bool byte_fallback = false;         // unknown characters become byte pieces
  std::string unk_surface;            // decoded text of the unknown piece
  std::string bos_piece, eos_piece, pad_piece;
  NormalizerSpec normalizer;
  std::optional<NormalizerSpec> denormalizer;  // of decoded text
  std::string where;                           // file, for errors
};

/// UserError(data) for an invalid file, and for word and character models.
SentencePieceSpec read_sentencepiece(const std::string& path);

}  // namespace teratron
