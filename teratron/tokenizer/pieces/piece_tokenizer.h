// tokenizer.json of Hugging Face with a Unigram model or a BPE of characters (T5, mT5, Llama 2, Mistral,
// Gemma).
//
// Added tokens are extracted from the text; the rest is normalized, split into words and encoded by the
// model; prefix and suffix are the special tokens of the post-processor.
#pragma once

#include <functional>
#include <memory>
#include <unordered_set>

#include "teratron/tokenizer/hf/special_tokens.h"
#include "teratron/tokenizer/pieces/piece_decoder.h"
#include "teratron/tokenizer/pieces/piece_model.h"
#include "teratron/tokenizer/pieces/piece_normalizer.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

struct PieceTokenizerConfig {
  std::unique_ptr<PieceModel> model;
  std::vector<NormalizerStep> normalizers;
  std::vector<WordStep> words;
  std::vector<PieceDecoder> decoders;
  std::vector<AddedToken> added;
  PostProcessor post_processor;
  std::string where;
};

class PieceTokenizer : public Tokenizer {
 public:
  /// UserError(data): added tokens and the post-processor's ids that contradict the vocabulary.
  PieceTokenizer(PieceTokenizerConfig config, SpecialTokensMap names, bool add_special_tokens);
  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::vector<TokenSpan> encode_with_offsets(std::string_view text) const override;
  /// Special tokens are part of the text.
  std::string decode(std::span<const int32_t> ids) const override;
  std::unique_ptr<TextDecoder> decoder() const override;
  bool is_special(int32_t id) const override {
    return special_ids_.contains(id) || Tokenizer::is_special(id);
  }
  int64_t vocab_size() const override { return vocab_size_; }
  const SpecialTokens& special() const override { return special_; }

 private:
  class Decoder;
  using Emit = std::function<void(int32_t id, NormalizedView text)>;
  void encode_all(NormalizedView text, const Emit& emit) const;
  void encode_normalized(NormalizedView text, const Emit& emit) const;
  std::string token_text(int32_t id) const;
  NormalizedString normalize_all(NormalizedView text) const;

  PieceTokenizerConfig config_;
  AddedVocabulary added_, normalized_added_;  // found before and after normalization
  std::unordered_map<int32_t, std::string> added_content_;
  std::unordered_set<int32_t> special_ids_;  // among the added tokens
  SpecialTokens special_;
  int64_t vocab_size_ = 0;
  bool needs_alignments_ = false;
};

}  // namespace teratron
