#include "teratron/tokenizer/bpe/hf_tokenizer.h"

#include <algorithm>

#include "teratron/base/error.h"

namespace teratron {

HuggingFaceTokenizer::HuggingFaceTokenizer(HuggingFaceSpec spec, const SpecialNames& names,
                                           bool add_special_tokens)
    : model_(spec.model),
      caches_(model_),
      normalizers_(spec.normalizers),
      steps_(std::move(spec.steps)),
      trim_(spec.trim) {
  vocab_size_ = model_.id_bound();
  add_tokens(spec.added, spec.model.where);
  for (const auto* ids : {&spec.prefix, &spec.suffix}) {
    for (const int32_t id : *ids) {
      if (id < vocab_size_) continue;
      throw data_error(
          {.what = fmt::format("the post-processor's id {} is outside the vocabulary of {}", id, vocab_size_),
           .where = spec.model.where});
    }
  }
  if (add_special_tokens) {
    prefix_ = std::move(spec.prefix);
    suffix_ = std::move(spec.suffix);
  }
  find_special(names);
}

void HuggingFaceTokenizer::add_tokens(const std::vector<AddedToken>& added, const std::string& where) {
  const int64_t limit = model_.id_bound() + static_cast<int64_t>(added.size()) * 8 + 65536;
  std::vector<AddedToken> raw, normalized;
  for (const AddedToken& token : added) {
    const auto reject = [&](std::string what) {
      throw data_error(
          {.what = fmt::format("added token '{}' {}", printable(token.content), what), .where = where});
    };
    if (token.content.empty()) reject("is empty");
    if (token.id >= limit) reject(fmt::format("has an id out of range ({}, limit {})", token.id, limit));
    if (const auto in_model = model_.id_of(token.content); in_model && *in_model != token.id) {
      reject(fmt::format("has the id {} but is {} in the vocabulary", token.id, *in_model));
    } else if (!in_model && !model_.bytes_of(token.id).empty()) {
      reject(fmt::format("has the id {} of another token", token.id));
    }
    const auto [known, is_new] = added_ids_.emplace(token.content, token.id);
    if (!is_new && known->second != token.id) reject("has two ids");
    if (is_new && !added_content_.emplace(token.id, token.content).second)
      reject("shares its id with another one");
    vocab_size_ = std::max<int64_t>(vocab_size_, int64_t{token.id} + 1);
    if (!is_new) continue;
    (token.normalized ? normalized : raw).push_back(token);
    if (token.normalized && !normalizers_.empty())
      normalized.back().content = normalize({token.content}).view().text;
  }
  raw_tokens_ = AddedTokenMatcher(std::move(raw));
  normalized_tokens_ = AddedTokenMatcher(std::move(normalized));
}

std::optional<int32_t> HuggingFaceTokenizer::id_of(const std::string& content) const {
  if (content.empty()) return std::nullopt;
  const auto found = added_ids_.find(content);
  return found != added_ids_.end() ? std::optional(found->second) : model_.id_of(content);
}

void HuggingFaceTokenizer::find_special(const SpecialNames& names) {
  special_.bos = id_of(names.bos);
  special_.eos = id_of(names.eos);
  special_.pad = id_of(names.pad);
  special_.cls = id_of(names.cls);
  special_.sep = id_of(names.sep);
  special_.mask = id_of(names.mask);
  for (const std::string& name : names.additional) {
    if (const auto id = id_of(name)) special_.additional.push_back(*id);
  }
  special_.eod = special_.eos;
  for (const char* const usual : {"<|endoftext|>", "<|end_of_text|>", "</s>"}) {
    if (!special_.eod) special_.eod = id_of(usual);
  }
}

AlignedText HuggingFaceTokenizer::normalize(AlignedView text) const {
  AlignedText out = rewrite(text, *normalizers_.front());
  for (size_t i = 1; i < normalizers_.size(); ++i) out = rewrite(out.view(), *normalizers_[i]);
  return out;
}

void HuggingFaceTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (!unicode::is_valid(text)) return encode(unicode::replace_invalid(text), ids);
  IdSink sink(caches_, ids);
  encode_all({text}, sink);
}

std::vector<TokenSpan> HuggingFaceTokenizer::encode_with_offsets(std::string_view text) const {
  const AlignedText tracked = AlignedText::track(text);
  SpanSink sink(model_);
  encode_all(tracked.view(), sink);
  std::vector<TokenSpan> spans = sink.take();
  if (trim_) std::for_each(spans.begin(), spans.end(), [&](TokenSpan& span) { trim(span); });
  return spans;
}

void HuggingFaceTokenizer::trim(TokenSpan& span) const {
  const auto is_blank = [](char c) { return c == ' '; };
  const std::string text = decode({&span.id, 1});
  const int64_t leading = std::find_if_not(text.begin(), text.end(), is_blank) - text.begin();
  const int64_t trailing = std::find_if_not(text.rbegin(), text.rend(), is_blank) - text.rbegin();
  const bool is_put_before = trim_->add_prefix_space && leading == 1 && span.begin == 0;
  if (!is_put_before) span.begin = std::min(span.begin + leading, span.end);
  span.end = std::max(span.end - trailing, span.begin);
}

void HuggingFaceTokenizer::encode_all(AlignedView text, TokenSink& sink) const {
  for (const int32_t id : prefix_) sink.token(id, {});
  for (const auto& part : raw_tokens_.split(text.text)) {
    const AlignedView view = text.part(part.text);
    if (part.id >= 0) {
      sink.token(part.id, view);
    } else if (normalizers_.empty()) {
      encode_segment(view, sink);
    } else {
      const AlignedText normalized = normalize(view);
      encode_segment(normalized.view(), sink);
    }
  }
  for (const int32_t id : suffix_) sink.token(id, {});
}

void HuggingFaceTokenizer::encode_segment(AlignedView text, TokenSink& sink) const {
  for (const auto& part : normalized_tokens_.split(text.text)) {
    const AlignedView view = text.part(part.text);
    if (part.id >= 0) {
      sink.token(part.id, view);
    } else {
      encode_steps(view, 0, sink);
    }
  }
}

void HuggingFaceTokenizer::encode_steps(AlignedView text, size_t index, TokenSink& sink) const {
  if (text.text.empty()) return;
  if (index == steps_.size()) return sink.word(text);
  const SplitStep& step = steps_[index];
  AlignedText prefixed(text);
  if (step.add_prefix_space && text.text[0] != ' ') {
    prefixed.append(" ", text, 0);
    prefixed.append(text);
    text = prefixed.view();
  }
  const bool is_last = index + 1 == steps_.size();
  if (step.pattern && is_last) {
    sink.words(*step.pattern, text);
  } else if (step.pattern) {
    PreSplitter().split(*step.pattern, text.text, [&](const char* word, size_t bytes) {
      encode_steps(text.part({word, bytes}), index + 1, sink);
    });
  } else if (step.regex) {
    std::vector<Regex::Piece> pieces = step.regex->find_all(text.text);
    if (step.invert) {
      for (Regex::Piece& piece : pieces) piece.is_match = !piece.is_match;
    }
    for (const std::string_view piece : apply_behavior(pieces, step.behavior)) {
      encode_steps(text.part(piece), index + 1, sink);
    }
  } else {
    encode_steps(text, index + 1, sink);
  }
}

}  // namespace teratron
