// Decoders of tokenizer.json for the models of piece_model.h, as in Hugging Face tokenizers.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "teratron/tokenizer/text/regex_split.h"

namespace teratron {

/// Symbols become spaces; the first token loses them, if the pre-tokenizer prepended one.
struct MetaspaceDecoder {
  std::string symbol;
  bool prepended = true;
};
struct ReplaceDecoder {
  std::shared_ptr<const Regex> pattern;
  std::string content;
};
/// Runs of tokens such as <0x41> become their bytes, or U+FFFD for each if these are not UTF-8.
struct ByteFallbackDecoder {};
/// All tokens become one.
struct FuseDecoder {};
/// Cuts the character off each token, at most so often.
struct StripDecoder {
  std::string character;
  size_t start = 0, stop = 0;
};
using PieceDecoder =
    std::variant<MetaspaceDecoder, ReplaceDecoder, ByteFallbackDecoder, FuseDecoder, StripDecoder>;

/// Without decoders, tokens are separated by spaces.
std::string decode_pieces(const std::vector<PieceDecoder>& decoders, std::vector<std::string> tokens);

}  // namespace teratron
