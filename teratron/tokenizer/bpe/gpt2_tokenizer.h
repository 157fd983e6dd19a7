// GPT2BPETokenizer: byte-level BPE from vocab.json and merges.txt.
#pragma once

#include "teratron/tokenizer/bpe/added_tokens.h"
#include "teratron/tokenizer/bpe/bpe_model.h"
#include "teratron/tokenizer/bpe/token_sink.h"
#include "teratron/tokenizer/bpe/word_cache.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// eod is <|endoftext|>, which the vocabulary must have. Up to Megatron-LM 0.7 a literal <|endoftext|> in the
/// text is spelled out in ordinary tokens; with `literal_special` (Megatron-LM's head) it is that one token.
class Gpt2BpeTokenizer : public Tokenizer {
 public:
  Gpt2BpeTokenizer(const BpeSpec& spec, bool literal_special);

  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::vector<TokenSpan> encode_with_offsets(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override { return model_.decode(ids); }
  int64_t vocab_size() const override { return model_.size(); }
  const SpecialTokens& special() const override { return special_; }

 private:
  void encode_parts(AlignedView text, TokenSink& sink) const;

  BpeModel model_;
  mutable WordCachePool caches_;
  AddedTokenMatcher added_;
  SpecialTokens special_;
};

}  // namespace teratron
