// Reading the .model file of SentencePiece: a protocol buffer (sentencepiece_model.proto).
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

/// How text is put into shape before it is cut (sentencepiece_normalizer.h).
struct SentencePieceRules {
  std::string charsmap;                  // compiled replacements; empty: none
  bool add_dummy_prefix = true;          // a blank before the text
  bool remove_extra_whitespaces = true;  // at both ends, and runs become one
  bool escape_whitespaces = true;        // a blank is written U+2581
  bool whitespace_as_suffix = false;     // the added blank comes last
};

struct SentencePieceSpec {
  enum class Kind : uint8_t { unigram = 1, bpe = 2 };
  Kind kind = Kind::unigram;
  std::vector<SentencePiece> pieces;  // by id
  bool byte_fallback = false;         // unknown characters become their bytes
  std::string unk_surface;            // what an unknown piece decodes to
  std::string bos_piece, eos_piece, pad_piece;
  SentencePieceRules normalizer;
  std::optional<SentencePieceRules> denormalizer;  // of decoded text
  std::string where;                               // the file, for messages
};

/// Throws UserError(data) for a file that is not a model, and for a model of words or of characters.
SentencePieceSpec read_sentencepiece(const std::string& path);

}  // namespace teratron
