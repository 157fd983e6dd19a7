#include "teratron/tokenizer/pieces/piece_tokenizer.h"

#include <algorithm>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// What the tokenizers of transformers take for granted.
SpecialTokensMap usual_names(SpecialTokensMap names, const FindToken& find) {
  const std::pair<std::string*, const char*> usual[] = {
      {&names.bos, "<s>"}, {&names.eos, "</s>"}, {&names.pad, "<pad>"}};
  for (const auto& [name, token] : usual) {
    if (name->empty() && find(token)) *name = token;
  }
  if (!names.additional.empty()) return names;
  for (std::string token = "<extra_id_0>"; find(token);)
    names.additional.push_back(
        std::exchange(token, fmt::format("<extra_id_{}>", names.additional.size() + 1)));
  return names;
}

bool prepends_first(const WordStep& step) {
  const auto* const metaspace = std::get_if<MetaspaceStep>(&step);
  return metaspace && metaspace->scheme == PrependScheme::first;
}

}  // namespace

PieceTokenizer::PieceTokenizer(PieceTokenizerConfig config, SpecialTokensMap names, bool add_special_tokens)
    : config_(std::move(config)), needs_alignments_(std::ranges::any_of(config_.words, prepends_first)) {
  const PieceVocabulary& vocabulary = config_.model->vocabulary();
  const auto in_model = [&](const std::string& token) { return vocabulary.id_of(token); };
  const auto normalized = [&](const std::string& content) {
    return std::string(normalize_all({content}).view().text);
  };
  AddedTokens added =
      check_added_tokens(config_.added,
                         {.id_of = in_model,
                          .has_id = [&](int32_t id) { return !vocabulary.token_of(id).empty(); },
                          .id_bound = vocabulary.id_bound()},
                         normalized, config_.where);
  vocab_size_ = added.vocab_size;
  check_post_processor(config_.post_processor, vocab_size_, config_.where);
  if (!add_special_tokens) config_.post_processor = {};
  const FindToken find = [&](const std::string& content) {
    const auto id = added.id_of(content);
    return id ? id : in_model(content);
  };
  special_ = find_special_tokens(usual_names(std::move(names), find), find);
  added_ = std::move(added.raw);
  normalized_added_ = std::move(added.normalized);
  added_content_ = std::move(added.content);
  special_ids_ = std::move(added.special);
  for (const AddedToken& token : config_.added) {
    if (token.normalized) added_content_[token.id] = normalized(token.content);  // as the library decodes it
  }
}

NormalizedString PieceTokenizer::normalize_all(NormalizedView text) const {
  NormalizedString out(text);
  out.append(text);
  for (const NormalizerStep& step : config_.normalizers) {
    NormalizedString next = apply_step(step, out.view());
    out = std::move(next);
  }
  return out;
}

void PieceTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (!unicode::is_valid(text)) return encode(unicode::replace_invalid(text), ids);
  const Emit emit = [&ids](int32_t id, NormalizedView) { ids.push_back(id); };
  if (!needs_alignments_) return encode_all({text}, emit);
  const NormalizedString aligned = NormalizedString::with_alignments(text);
  encode_all(aligned.view(), emit);
}

std::vector<TokenSpan> PieceTokenizer::encode_with_offsets(std::string_view text) const {
  const NormalizedString aligned = NormalizedString::with_alignments(text);
  std::vector<TokenSpan> spans;
  encode_all(aligned.view(), [&spans](int32_t id, NormalizedView piece) {
    const Offsets offsets = piece.offsets();
    spans.push_back({id, offsets.begin, offsets.end});
  });
  return spans;
}

void PieceTokenizer::encode_all(NormalizedView text, const Emit& emit) const {
  for (const int32_t id : config_.post_processor.prefix) emit(id, {});
  for (const auto& part : added_.split(text.text)) {
    const NormalizedView view = text.slice(part.text);
    if (part.id >= 0) {
      emit(part.id, view);
    } else {
      encode_normalized(normalize_all(view).view(), emit);
    }
  }
  for (const int32_t id : config_.post_processor.suffix) emit(id, {});
}

void PieceTokenizer::encode_normalized(NormalizedView text, const Emit& emit) const {
  for (const auto& part : normalized_added_.split(text.text)) {
    const NormalizedView view = text.slice(part.text);
    if (part.id >= 0) {
      emit(part.id, view);
      continue;
    }
    split_words(config_.words, 0, view, [&](NormalizedView word) {
      for (const Piece& piece : config_.model->encode(word.text)) emit(piece.id, word.slice(piece.text));
    });
  }
}

std::string PieceTokenizer::token_text(int32_t id) const {
  const auto added = added_content_.find(id);
  return added == added_content_.end() ? std::string(config_.model->vocabulary().token_of(id))
                                       : added->second;
}

class PieceTokenizer::Decoder final : public TextDecoder {
 public:
  explicit Decoder(const PieceTokenizer& tokenizer)
      : tokenizer_(tokenizer), decoding_(tokenizer.config_.decoders) {}
  std::string add(int32_t id) override {
    std::string token = tokenizer_.token_text(id);
    return token.empty() ? std::string() : decoding_.add(std::move(token));
  }
  std::string rest() const override { return PieceDecoding(decoding_).finish(); }
  std::unique_ptr<TextDecoder> clone() const override { return std::make_unique<Decoder>(*this); }

 private:
  const PieceTokenizer& tokenizer_;
  PieceDecoding decoding_;
};

std::unique_ptr<TextDecoder> PieceTokenizer::decoder() const {
  return std::make_unique<Decoder>(*this);
}

std::string PieceTokenizer::decode(std::span<const int32_t> ids) const {
  Decoder decoder(*this);
  std::string text;
  for (const int32_t id : ids) text += decoder.add(id);
  return text + decoder.rest();
}

}  // namespace teratron
