// SentencePieceTokenizer, GPTSentencePieceTokenizer and Llama2Tokenizer of Megatron-LM.
//
//                              up to 0.7                                     head
//   SentencePieceTokenizer     <CLS> <SEP> <EOD> <MASK> <PAD> <BOS> <EOS>    the model unchanged: eod = eos
//                              and the sentinels are added if the model
//                              lacks them, and matched in the text
//   GPTSentencePieceTokenizer  the model unchanged                           the model unchanged
//   Llama2Tokenizer            bos before every text, no pad                 the model unchanged
#pragma once

#include <unordered_map>

#include "teratron/tokenizer/sentencepiece/sentencepiece_model.h"
#include "teratron/tokenizer/text/added_vocabulary.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

enum class SentencePieceStyle : uint8_t { plain, added_tokens, leading_bos };

class SentencePieceTokenizer : public Tokenizer {
 public:
  /// `extra_ids`: number of sentinels <extra_id_0>..., for added_tokens. UserError(data) for an invalid
  /// model, or if leading_bos lacks a bos piece.
  SentencePieceTokenizer(SentencePieceSpec spec, SentencePieceStyle style, int64_t extra_ids);

  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::vector<TokenSpan> encode_with_offsets(std::string_view text) const override;
  /// A space is inserted before and after each added token.
  std::string decode(std::span<const int32_t> ids) const override;
  std::unique_ptr<TextDecoder> decoder() const override;
  bool is_special(int32_t id) const override {
    return added_content_.contains(id) || model_.is_special(id) || Tokenizer::is_special(id);
  }
  int64_t vocab_size() const override { return vocab_size_; }
  const SpecialTokens& special() const override { return special_; }
  /// tokenizer.json and tokenizer_config.json with the same ids.
  std::map<std::string, std::string> hf_files() const;

 private:
  class Decoder;
  void add_tokens(int64_t extra_ids);

  SentencePieceModel model_;
  SentencePieceStyle style_;
  int64_t vocab_size_;
  AddedVocabulary added_;
  std::unordered_map<int32_t, std::string> added_content_;
  SpecialTokens special_;
};

}  // namespace teratron
