// HuggingFaceTokenizer: a tokenizer.json with a byte-level BPE (GPT-2, Llama 3, Qwen and their like), token
// for token as Hugging Face tokenizers reads it.
//
// Steps: added tokens are cut out of the text; the rest is normalised, cut into words, encoded; the
// post-processor's tokens (a leading <|begin_of_text|>, say) go around the whole when `add_special_tokens`.
// eod is eos of tokenizer_config.json or special_tokens_map.json in the same folder; without those files it
// is the vocabulary's <|endoftext|>, <|end_of_text|> or </s>.
#pragma once

#include <unordered_map>

#include "teratron/tokenizer/bpe/token_sink.h"
#include "teratron/tokenizer/hf_spec.h"

namespace teratron {

class HuggingFaceTokenizer : public Tokenizer {
 public:
  /// `names`: which contents are special. Throws UserError(data) when the parts do not fit together.
  HuggingFaceTokenizer(HuggingFaceSpec spec, const SpecialNames& names, bool add_special_tokens);

  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::vector<TokenSpan> encode_with_offsets(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override {
    return model_.decode(ids, added_content_);
  }
  int64_t vocab_size() const override { return vocab_size_; }
  const SpecialTokens& special() const override { return special_; }

 private:
  void add_tokens(const std::vector<AddedToken>& added, const std::string& where);
  void find_special(const SpecialNames& names);
  std::optional<int32_t> id_of(const std::string& content) const;
  AlignedText normalize(AlignedView text) const;
  void encode_all(AlignedView text, TokenSink& sink) const;
  void encode_segment(AlignedView text, TokenSink& sink) const;
  void encode_steps(AlignedView text, size_t step, TokenSink& sink) const;
  void trim(TokenSpan& span) const;

  BpeModel model_;
  mutable WordCachePool caches_;
  std::vector<const unicode::Rewriting*> normalizers_;
  std::vector<SplitStep> steps_;
  AddedTokenMatcher raw_tokens_, normalized_tokens_;
  std::unordered_map<int32_t, std::string> added_content_;
  std::unordered_map<std::string, int32_t> added_ids_;
  std::vector<int32_t> prefix_, suffix_;
  std::optional<OffsetTrim> trim_;
  SpecialTokens special_;
  int64_t vocab_size_ = 0;
};

}  // namespace teratron
