#include "teratron/tokenizer/bpe/gpt2_tokenizer.h"

#include "teratron/base/error.h"

namespace teratron {

Gpt2BpeTokenizer::Gpt2BpeTokenizer(const BpeConfig& config, bool literal_special)
    : ByteLevelTokenizer(config) {
  constexpr const char* kEndOfText = "<|endoftext|>";
  vocab_size_ = model_.size();
  steps_ = {{.pattern = SplitPattern::gpt2}};
  special_.eod = model_.id_of(kEndOfText);
  if (!special_.eod) {
    throw data_error({.what = "the vocabulary has no <|endoftext|> (end of document)",
                      .where = config.where,
                      .fix = "use GPT-2's vocabulary, or train one with --special-tokens '<|endoftext|>'"});
  }
  if (literal_special) {
    special_.bos = special_.eos = special_.eod;
    added_ = AddedVocabulary({{.content = kEndOfText, .id = *special_.eod, .special = true}});
  }
}

}  // namespace teratron
