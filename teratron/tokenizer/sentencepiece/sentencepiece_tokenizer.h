// SentencePieceTokenizer, GPTSentencePieceTokenizer and Llama2Tokenizer: Megatron-LM's three views of a
// SentencePiece model.
//
//                              up to 0.7                                     head
//   SentencePieceTokenizer     <CLS> <SEP> <EOD> <MASK> <PAD> <BOS> <EOS>    the model as it is: eod = eos
//                              and the sentinels are added where the model
//                              lacks them; literal ones in a text are these
//                              tokens
//   GPTSentencePieceTokenizer  the model as it is                            the same
//   Llama2Tokenizer            bos before every text, pad unknown            the model as it is
#pragma once

#include <unordered_map>

#include "teratron/tokenizer/bpe/added_tokens.h"
#include "teratron/tokenizer/sentencepiece/sentencepiece_model.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

enum class SentencePieceStyle : uint8_t { plain, added_tokens, leading_bos };

class SentencePieceTokenizer : public Tokenizer {
 public:
  /// `extra_ids`: sentinels <extra_id_0>..., of style added_tokens. Throws UserError(data) for a damaged model, or one
  /// without the bos piece that leading_bos needs.
  SentencePieceTokenizer(SentencePieceSpec spec, SentencePieceStyle style, int64_t extra_ids);

  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::vector<TokenSpan> encode_with_offsets(std::string_view text) const override;
  /// Added tokens are spelled out with a blank behind each, and one before.
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  const SpecialTokens& special() const override { return special_; }

 private:
  void add_tokens(int64_t extra_ids);

  SentencePieceModel model_;
  SentencePieceStyle style_;
  int64_t vocab_size_;
  AddedTokenMatcher added_;
  std::unordered_map<int32_t, std::string> added_content_;
  SpecialTokens special_;
};

}  // namespace teratron
