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

/// The decoders of a file, applied to tokens as they come. Without decoders, tokens are separated by spaces.
/// Each decoder passes on what later tokens cannot change, and keeps the rest.
class PieceDecoding {
 public:
  /// `decoders` must outlive it.
  explicit PieceDecoding(const std::vector<PieceDecoder>& decoders);
  /// The text that is certain with this token.
  std::string add(std::string token);
  /// The text that is left. Nothing may follow.
  std::string finish();

 private:
  struct State {
    bool fused = false;  // what comes is parts of one token
    bool is_first = true;
    std::string held;
    size_t cut = 0;  // characters of StripDecoder at the start
  };
  void pass(size_t stage, std::string token);
  void apply(const MetaspaceDecoder& decoder, size_t stage, std::string token);
  void apply(const ReplaceDecoder& decoder, size_t stage, std::string token);
  void apply(const ByteFallbackDecoder& decoder, size_t stage, std::string token);
  void apply(const FuseDecoder& decoder, size_t stage, std::string token);
  void apply(const StripDecoder& decoder, size_t stage, std::string token);
  void finish_stage(const ReplaceDecoder& decoder, size_t stage);
  void finish_stage(const ByteFallbackDecoder& decoder, size_t stage);
  void finish_stage(const StripDecoder& decoder, size_t stage);
  template <class Decoder>
  void finish_stage(const Decoder&, size_t) {}

  const std::vector<PieceDecoder>* decoders_;
  std::vector<State> states_;
  std::string text_;
  bool is_first_ = true;
};

}  // namespace teratron
