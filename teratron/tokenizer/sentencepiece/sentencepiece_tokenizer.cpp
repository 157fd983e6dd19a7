#include "teratron/tokenizer/sentencepiece/sentencepiece_tokenizer.h"

#include "teratron/base/error.h"
#include "teratron/tokenizer/sentencepiece/sentencepiece_json.h"
#include "teratron/tokenizer/unicode/normalized_string.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceSpec spec, SentencePieceStyle style,
                                               int64_t extra_ids)
    : model_(std::move(spec)), style_(style), vocab_size_(model_.size()) {
  if (style == SentencePieceStyle::added_tokens) {
    add_tokens(extra_ids);
    return;
  }
  special_.bos = model_.bos();
  special_.eos = special_.eod = model_.eos();
  if (style == SentencePieceStyle::plain) special_.pad = model_.pad();
  if (style == SentencePieceStyle::leading_bos && !special_.bos) {
    throw data_error({.what = "the model has no bos piece (<s>)",
                      .where = model_.where(),
                      .fix = "use --tokenizer-type GPTSentencePieceTokenizer, which adds no bos"});
  }
}

void SentencePieceTokenizer::add_tokens(int64_t extra_ids) {
  std::vector<AddedToken> added;
  std::unordered_map<std::string, int32_t> ids;
  const auto add = [&](const std::string& token) {
    const auto [known, is_new] = ids.emplace(token, -1);
    if (!is_new) return known->second;
    const auto in_model = model_.id_of(token);
    known->second = in_model ? *in_model : static_cast<int32_t>(vocab_size_++);
    added.push_back({.content = token, .id = known->second, .special = true});
    added_content_.emplace(known->second, token);
    return known->second;
  };
  const auto name = [&](std::optional<int32_t> id, const char* fallback) {
    return id ? model_.piece(*id) : fallback;
  };
  special_.cls = add("<CLS>");
  special_.sep = add("<SEP>");
  special_.eod = add("<EOD>");
  special_.mask = add("<MASK>");
  special_.pad = add(name(model_.pad(), "<PAD>"));
  special_.bos = add(name(model_.bos(), "<BOS>"));
  special_.eos = add(name(model_.eos(), "<EOS>"));
  for (int64_t i = 0; i < extra_ids; ++i) special_.additional.push_back(add(fmt::format("<extra_id_{}>", i)));
  added_ = AddedVocabulary(std::move(added));
}

void SentencePieceTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (!unicode::is_valid(text)) return encode(unicode::replace_invalid(text), ids);
  if (style_ == SentencePieceStyle::leading_bos) ids.push_back(*special_.bos);
  for (const auto& part : added_.split(text)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else {
      model_.encode(part.text, ids);
    }
  }
}

std::vector<TokenSpan> SentencePieceTokenizer::encode_with_offsets(std::string_view text) const {
  const NormalizedString aligned = NormalizedString::with_alignments(text);
  const NormalizedView view = aligned.view();
  std::vector<TokenSpan> spans;
  if (style_ == SentencePieceStyle::leading_bos) spans.push_back({*special_.bos, 0, 0});
  for (const auto& part : added_.split(view.text)) {
    const NormalizedView piece = view.slice(part.text);
    const Offsets all = piece.offsets();
    if (part.id >= 0) {
      spans.push_back({part.id, all.begin, all.end});
      continue;
    }
    const auto character = [&](size_t byte) {
      return byte < piece.text.size() ? piece.alignments[byte].begin : all.end;
    };
    for (const auto& token : model_.encode_with_offsets(piece.text))
      spans.push_back({token.id, character(token.begin), character(token.end)});
  }
  return spans;
}

class SentencePieceTokenizer::Decoder final : public TextDecoder {
 public:
  explicit Decoder(const SentencePieceTokenizer& tokenizer)
      : tokenizer_(tokenizer), decoder_(tokenizer.model_) {}
  std::string add(int32_t id) override {
    const auto added = tokenizer_.added_content_.find(id);
    if (added == tokenizer_.added_content_.end()) return decoder_.add(id);
    const std::string before = decoder_.rest();
    decoder_ = SentencePieceModel::Decoder(tokenizer_.model_);
    return before + " " + added->second + " ";
  }
  std::string rest() const override { return decoder_.rest(); }
  std::unique_ptr<TextDecoder> clone() const override { return std::make_unique<Decoder>(*this); }

 private:
  const SentencePieceTokenizer& tokenizer_;
  SentencePieceModel::Decoder decoder_;
};

std::unique_ptr<TextDecoder> SentencePieceTokenizer::decoder() const {
  return std::make_unique<Decoder>(*this);
}

std::string SentencePieceTokenizer::decode(std::span<const int32_t> ids) const {
  Decoder decoder(*this);
  std::string text;
  for (const int32_t id : ids) text += decoder.add(id);
  return text + decoder.rest();
}

std::map<std::string, std::string> SentencePieceTokenizer::hf_files() const {
  SentencePieceExtras extras;
  std::map<int32_t, std::string> content_of;
  for (int64_t id = 0; id < vocab_size_; ++id) {
    const auto token = added_content_.find(static_cast<int32_t>(id));
    if (token != added_content_.end()) extras.added.push_back({token->second, token->first});
    content_of[static_cast<int32_t>(id)] =
        token != added_content_.end() ? token->second : model_.piece(static_cast<int32_t>(id));
  }
  if (style_ == SentencePieceStyle::leading_bos) extras.bos = {content_of.at(*special_.bos), *special_.bos};
  return {{"tokenizer.json", sentencepiece_json(model_.spec(), extras)},
          {"tokenizer_config.json", exported_tokenizer_config(special_, content_of)}};
}

}  // namespace teratron
