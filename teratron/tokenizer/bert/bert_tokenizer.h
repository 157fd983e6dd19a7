// BertWordPieceLowerCase and BertWordPieceCase.
//
// Text is cleaned of control characters, Chinese characters stand alone, words end at blanks and punctuation; in lower
// case accents are dropped. What differs between versions of Megatron-LM:
//
//                          up to 0.7                                  head (Hugging Face tokenizers)
//   classes                Python's unicodedata                       those of the library; private-use and
//                                                                     unassigned code points are dropped
//   longest word           200 characters                             100
//   [MASK] etc. in text    spelled out                                that token
//   around a text          nothing                                    [CLS] ... [SEP], unless left out
//   vocabulary             [BOS], [EOS] and the sentinels are added   sentinels only (BertWordPieceCase: 100)
#pragma once

#include <functional>

#include "teratron/tokenizer/bert/wordpiece.h"
#include "teratron/tokenizer/bpe/added_tokens.h"
#include "teratron/tokenizer/tokenizer.h"
#include "teratron/tokenizer/unicode/aligned_text.h"

namespace teratron {

struct BertOptions {
  std::string vocab_file;
  bool lower_case = true;
  int64_t extra_ids = 0;               // sentinels <extra_id_0>...
  bool head = false;                   // as Megatron-LM's head does
  bool include_special_tokens = true;  // head only: [CLS] ... [SEP]
};

class BertTokenizer : public Tokenizer {
 public:
  /// Throws UserError(data) when the vocabulary lacks [CLS], [SEP], [PAD], [MASK] or [UNK].
  explicit BertTokenizer(const BertOptions& options);

  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::vector<TokenSpan> encode_with_offsets(std::string_view text) const override;
  /// Pieces joined again, words with blanks between; [PAD] and [CLS] are left out.
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return words_.size(); }
  const SpecialTokens& special() const override { return special_; }

 private:
  using Emit = std::function<void(int32_t id, AlignedView text)>;
  using EmitWord = std::function<void(AlignedView word)>;
  void encode_all(AlignedView text, const Emit& token, const EmitWord& word) const;
  void cut(AlignedView text, const EmitWord& word) const;
  AlignedText clean(AlignedView text) const;
  AlignedText fold_case(AlignedView text) const;
  void cut_words(AlignedView text, const EmitWord& word) const;

  WordPiece words_;
  bool lower_case_, head_, around_;
  size_t longest_word_;
  AddedTokenMatcher added_;  // head only
  SpecialTokens special_;
};

}  // namespace teratron
