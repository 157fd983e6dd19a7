// BERT's tokenizer: BertRules, then WordPiece; with the added tokens and the post-processor of Hugging Face
// tokenizers. What it is made of comes from vocab.txt (bert_vocab.h) or tokenizer.json (wordpiece_json.h).
#pragma once

#include <functional>
#include <unordered_map>

#include "teratron/tokenizer/bert/bert_normalizer.h"
#include "teratron/tokenizer/bert/wordpiece.h"
#include "teratron/tokenizer/text/added_vocabulary.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

enum class WordPieceDecoder : uint8_t {
  megatron,   // words separated by spaces, without [PAD] and [CLS]
  tokens,     // tokens separated by spaces
  wordpiece,  // words separated by spaces
  cleanup,    // the same, without the spaces before punctuation and contractions
};

struct WordPieceConfig {
  WordPieceVocabulary vocabulary;
  int64_t vocab_size = 0;       // with added tokens
  size_t max_characters = 100;  // longer words are unknown
  BertRules rules;
  AddedVocabulary added;             // found in the text
  AddedVocabulary normalized_added;  // found in the normalized text
  std::unordered_map<int32_t, std::string> added_content = {};
  std::vector<int32_t> prefix, suffix;  // of the post-processor
  SpecialTokens special;
  WordPieceDecoder decoder = WordPieceDecoder::megatron;
};

class WordPieceTokenizer : public Tokenizer {
 public:
  /// UserError(data) if the vocabulary lacks the unknown token.
  explicit WordPieceTokenizer(WordPieceConfig config);

  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::vector<TokenSpan> encode_with_offsets(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return config_.vocab_size; }
  const SpecialTokens& special() const override { return config_.special; }
  std::vector<bool> continuation_pieces() const override;

 private:
  using Emit = std::function<void(int32_t id, NormalizedView text)>;
  using EmitWord = std::function<void(NormalizedView word)>;
  void encode_all(NormalizedView text, const Emit& token, const EmitWord& word) const;
  void encode_normalized(NormalizedView text, const Emit& token, const EmitWord& word) const;
  std::string token_text(int32_t id, bool is_first) const;

  WordPieceConfig config_;
  WordPiece words_;
};

}  // namespace teratron
