// BertWordPieceLowerCase and BertWordPieceCase.
//
// Text is cleaned of control characters; words are split at whitespace, punctuation and around Chinese
// characters; in lower case, accents are stripped. Versions of Megatron-LM differ:
//
//                          up to 0.7                                  head (Hugging Face tokenizers)
//   character classes      Python's unicodedata                       the library's; private-use and
//                                                                     unassigned code points are dropped
//   max word length        200 characters                             100
//   [MASK] etc. in text    ordinary text                              special tokens
//   post-processor         none                                       [CLS] ... [SEP], optional
//   vocabulary             [BOS], [EOS] and the sentinels are added   sentinels only (BertWordPieceCase: 100)
#pragma once

#include <functional>

#include "teratron/tokenizer/bert/wordpiece.h"
#include "teratron/tokenizer/bpe/added_vocabulary.h"
#include "teratron/tokenizer/tokenizer.h"
#include "teratron/tokenizer/unicode/normalized_string.h"

namespace teratron {

struct BertOptions {
  std::string vocab_file;
  bool lower_case = true;
  int64_t extra_ids = 0;               // sentinels <extra_id_0>...
  bool head = false;                   // as Megatron-LM head
  bool include_special_tokens = true;  // head only: [CLS] ... [SEP]
};

class BertTokenizer : public Tokenizer {
 public:
  /// UserError(data) if the vocabulary lacks [CLS], [SEP], [PAD], [MASK] or [UNK].
  explicit BertTokenizer(const BertOptions& options);

  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::vector<TokenSpan> encode_with_offsets(std::string_view text) const override;
  /// Words separated by spaces; [PAD] and [CLS] are dropped.
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return words_.size(); }
  const SpecialTokens& special() const override { return special_; }
  std::vector<bool> continuation_pieces() const override;

 private:
  using Emit = std::function<void(int32_t id, NormalizedView text)>;
  using EmitWord = std::function<void(NormalizedView word)>;
  void encode_all(NormalizedView text, const Emit& token, const EmitWord& word) const;
  void pre_tokenize(NormalizedView text, const EmitWord& word) const;
  NormalizedString clean_text(NormalizedView text) const;
  NormalizedString lower_and_strip_accents(NormalizedView text) const;
  void split_words(NormalizedView text, const EmitWord& word) const;

  WordPiece words_;
  bool lower_case_, head_, add_special_tokens_;
  size_t max_characters_per_word_;
  AddedVocabulary added_;  // head only
  SpecialTokens special_;
};

}  // namespace teratron
