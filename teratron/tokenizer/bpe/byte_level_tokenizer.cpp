#include "teratron/tokenizer/bpe/byte_level_tokenizer.h"

#include <algorithm>

namespace teratron {

/// Receives the pre-tokenized text.
class ByteLevelTokenizer::Output {
 public:
  virtual ~Output() = default;
  /// Pre-tokenizes and encodes a text.
  virtual void words(SplitPattern pattern, NormalizedView text) = 0;
  virtual void word(NormalizedView word) = 0;
  /// An added token; no text for those of the post-processor.
  virtual void token(int32_t id, NormalizedView text) = 0;
};

class ByteLevelTokenizer::IdOutput final : public Output {
 public:
  IdOutput(WordCachePool& caches, std::vector<int32_t>& ids) : cache_(caches), ids_(ids) {}
  void words(SplitPattern pattern, NormalizedView text) override {
    (*cache_).encode_words(pattern, text.text, ids_);
  }
  void word(NormalizedView word) override { (*cache_).encode(word.text, ids_); }
  void token(int32_t id, NormalizedView) override { ids_.push_back(id); }

 private:
  WordCachePool::Lease cache_;
  std::vector<int32_t>& ids_;
};

/// For text with alignments.
class ByteLevelTokenizer::OffsetsOutput final : public Output {
 public:
  explicit OffsetsOutput(const BpeModel& model) : model_(model) {}
  void words(SplitPattern pattern, NormalizedView text) override {
    PreTokenizer().split(pattern, text.text,
                         [&](const char* begin, size_t bytes) { word(text.slice({begin, bytes})); });
  }
  void word(NormalizedView word) override {
    std::vector<int32_t> ids;
    model_.encode_word(word.text, ids);
    for_each_token(model_, ids, word, [&](int32_t id, NormalizedView text) { token(id, text); });
  }
  void token(int32_t id, NormalizedView text) override {
    const Offsets offsets = text.offsets();
    spans.push_back({id, offsets.begin, offsets.end});
  }

  std::vector<TokenSpan> spans;

 private:
  const BpeModel& model_;
};

class ByteLevelTokenizer::Decoder final : public TextDecoder {
 public:
  explicit Decoder(const ByteLevelTokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string add(int32_t id) override {
    std::string text = held_ + tokenizer_.decode({&id, 1});
    held_ = text.substr(text.size() - unicode::truncated_bytes(text));
    text.erase(text.size() - held_.size());
    return text;
  }
  std::string rest() const override { return held_; }
  std::unique_ptr<TextDecoder> clone() const override { return std::make_unique<Decoder>(*this); }

 private:
  const ByteLevelTokenizer& tokenizer_;
  std::string held_;
};

std::unique_ptr<TextDecoder> ByteLevelTokenizer::decoder() const {
  return std::make_unique<Decoder>(*this);
}

NormalizedString ByteLevelTokenizer::normalize(NormalizedView text) const {
  NormalizedString out = teratron::normalize(text, *normalizers_.front());
  for (size_t i = 1; i < normalizers_.size(); ++i) out = teratron::normalize(out.view(), *normalizers_[i]);
  return out;
}

void ByteLevelTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (!unicode::is_valid(text)) return encode(unicode::replace_invalid(text), ids);
  IdOutput out(caches_, ids);
  encode_all({text}, out);
}

std::vector<TokenSpan> ByteLevelTokenizer::encode_with_offsets(std::string_view text) const {
  const auto aligned = NormalizedString::with_alignments(text);
  OffsetsOutput out(model_);
  encode_all(aligned.view(), out);
  if (trim_) std::for_each(out.spans.begin(), out.spans.end(), [&](TokenSpan& span) { trim(span); });
  return std::move(out.spans);
}

void ByteLevelTokenizer::trim(TokenSpan& span) const {
  const auto is_space = [](char c) { return c == ' '; };
  const std::string text = decode({&span.id, 1});
  const int64_t leading = std::find_if_not(text.begin(), text.end(), is_space) - text.begin();
  const int64_t trailing = std::find_if_not(text.rbegin(), text.rend(), is_space) - text.rbegin();
  const bool is_prefix_space = trim_->add_prefix_space && leading == 1 && span.begin == 0;
  if (!is_prefix_space) span.begin = std::min(span.begin + leading, span.end);
  span.end = std::max(span.end - trailing, span.begin);
}

void ByteLevelTokenizer::encode_all(NormalizedView text, Output& out) const {
  for (const int32_t id : prefix_) out.token(id, {});
  for (const auto& part : added_.split(text.text)) {
    const NormalizedView view = text.slice(part.text);
    if (part.id >= 0) {
      out.token(part.id, view);
    } else if (normalizers_.empty()) {
      encode_normalized(view, out);
    } else {
      encode_normalized(normalize(view).view(), out);
    }
  }
  for (const int32_t id : suffix_) out.token(id, {});
}

void ByteLevelTokenizer::encode_normalized(NormalizedView text, Output& out) const {
  for (const auto& part : normalized_added_.split(text.text)) {
    if (part.id >= 0) {
      out.token(part.id, text.slice(part.text));
    } else {
      pre_tokenize(text.slice(part.text), 0, out);
    }
  }
}

void ByteLevelTokenizer::pre_tokenize(NormalizedView text, size_t index, Output& out) const {
  if (text.text.empty()) return;
  if (index == steps_.size()) return out.word(text);
  const PreTokenizerStep& step = steps_[index];
  NormalizedString prefixed(text);
  if (step.add_prefix_space && text.text[0] != ' ') {
    prefixed.append(" ", text, 0);
    prefixed.append(text);
    text = prefixed.view();
  }
  const bool is_last = index + 1 == steps_.size();
  if (step.pattern && is_last) {
    out.words(*step.pattern, text);
  } else if (step.pattern) {
    PreTokenizer().split(*step.pattern, text.text, [&](const char* word, size_t bytes) {
      pre_tokenize(text.slice({word, bytes}), index + 1, out);
    });
  } else if (step.regex) {
    std::vector<Regex::Piece> pieces = step.regex->find_all(text.text);
    if (step.invert) {
      for (Regex::Piece& piece : pieces) piece.is_match = !piece.is_match;
    }
    for (const std::string_view piece : apply_behavior(pieces, step.behavior))
      pre_tokenize(text.slice(piece), index + 1, out);
  } else {
    pre_tokenize(text, index + 1, out);
  }
}

}  // namespace teratron
