#include "teratron/tokenizer/bpe/gpt2_tokenizer.h"

#include "teratron/base/error.h"

namespace teratron {
namespace {

constexpr const char* kEndOfText = "<|endoftext|>";

}  // namespace

Gpt2BpeTokenizer::Gpt2BpeTokenizer(const BpeSpec& spec, bool literal_special)
    : model_(spec), caches_(model_) {
  special_.eod = model_.id_of(kEndOfText);
  if (!special_.eod) {
    throw data_error({.what = "the vocabulary has no <|endoftext|>, which ends documents",
                      .where = spec.where,
                      .fix = "use GPT-2's vocabulary, or train one with --special-tokens '<|endoftext|>'"});
  }
  if (literal_special) {
    special_.bos = special_.eos = special_.eod;
    added_ = AddedTokenMatcher({{.content = kEndOfText, .id = *special_.eod, .special = true}});
  }
}

void Gpt2BpeTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (!unicode::is_valid(text)) return encode(unicode::replace_invalid(text), ids);
  IdSink sink(caches_, ids);
  encode_parts({text}, sink);
}

std::vector<TokenSpan> Gpt2BpeTokenizer::encode_with_offsets(std::string_view text) const {
  const AlignedText tracked = AlignedText::track(text);
  SpanSink sink(model_);
  encode_parts(tracked.view(), sink);
  return sink.take();
}

void Gpt2BpeTokenizer::encode_parts(AlignedView text, TokenSink& sink) const {
  for (const auto& part : added_.split(text.text)) {
    const AlignedView view = text.part(part.text);
    if (part.id >= 0) {
      sink.token(part.id, view);
    } else {
      sink.words(SplitPattern::gpt2, view);
    }
  }
}

}  // namespace teratron
