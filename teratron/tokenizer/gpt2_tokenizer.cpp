#include "teratron/tokenizer/gpt2_tokenizer.h"

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
  const WordCachePool::Lease cache(caches_);
  const auto encode_plain = [&](std::string_view part) {
    const char* const end = part.data() + part.size();
    WordBatch batch(*cache, ids);
    splitter_.split(SplitPattern::gpt2, part, [&](const char* word, size_t bytes) {
      batch.add(word, bytes, static_cast<size_t>(end - word));
    });
    batch.flush();
  };
  if (added_.empty()) return encode_plain(text);
  for (const auto& part : added_.split(text)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else {
      encode_plain(part.text);
    }
  }
}

std::string Gpt2BpeTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text.append(model_.bytes_of(id));
  return text;
}

}  // namespace teratron
