#include "teratron/tokenizer/hf_tokenizer.h"

#include <algorithm>

#include "teratron/base/error.h"

namespace teratron {

HuggingFaceTokenizer::HuggingFaceTokenizer(HuggingFaceSpec spec, const SpecialNames& names,
                                           bool add_special_tokens)
    : model_(spec.model), caches_(model_), normalizers_(spec.normalizers), steps_(std::move(spec.steps)) {
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
    if (token.normalized) normalized.back().content = normalize(token.content);
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

std::string HuggingFaceTokenizer::normalize(std::string_view text) const {
  std::string out(text);
  for (const Normalization step : normalizers_) {
    if (step == Normalization::nfc) {
      out = unicode::nfc(out);
    } else if (step == Normalization::nfd) {
      out = unicode::nfd(out);
    } else {
      std::string lower;
      for (const char* p = out.data(); p < out.data() + out.size();)
        unicode::append_lower(unicode::next(p), lower);
      out = std::move(lower);
    }
  }
  return out;
}

void HuggingFaceTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (!unicode::is_valid(text)) return encode(unicode::replace_invalid(text), ids);
  const WordCachePool::Lease cache(caches_);
  ids.insert(ids.end(), prefix_.begin(), prefix_.end());
  for (const auto& part : raw_tokens_.split(text)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else {
      encode_segment(part.text, *cache, ids);
    }
  }
  ids.insert(ids.end(), suffix_.begin(), suffix_.end());
}

void HuggingFaceTokenizer::encode_segment(std::string_view text, WordCache& cache,
                                          std::vector<int32_t>& ids) const {
  std::string normalized;
  if (!normalizers_.empty()) {
    normalized = normalize(text);
    text = normalized;
  }
  if (normalized_tokens_.empty()) return encode_steps(text, 0, cache, ids);
  for (const auto& part : normalized_tokens_.split(text)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else {
      encode_steps(part.text, 0, cache, ids);
    }
  }
}

void HuggingFaceTokenizer::encode_steps(std::string_view text, size_t index, WordCache& cache,
                                        std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  if (index == steps_.size()) return cache.encode(text.data(), text.size(), text.size(), ids);
  const SplitStep& step = steps_[index];
  std::string prefixed;
  if (step.add_prefix_space && text[0] != ' ') {
    prefixed.reserve(text.size() + 1);
    prefixed.append(" ").append(text);
    text = prefixed;
  }
  const bool is_last = index + 1 == steps_.size();
  if (step.pattern && is_last) {
    const char* const end = text.data() + text.size();
    WordBatch batch(cache, ids);
    splitter_.split(*step.pattern, text, [&](const char* word, size_t bytes) {
      batch.add(word, bytes, static_cast<size_t>(end - word));
    });
    batch.flush();
  } else if (step.pattern) {
    splitter_.split(*step.pattern, text, [&](const char* word, size_t bytes) {
      encode_steps({word, bytes}, index + 1, cache, ids);
    });
  } else if (step.regex) {
    std::vector<Regex::Piece> pieces = step.regex->find_all(text);
    if (step.invert) {
      for (Regex::Piece& piece : pieces) piece.is_match = !piece.is_match;
    }
    for (const std::string_view piece : apply_behavior(pieces, step.behavior)) {
      encode_steps(piece, index + 1, cache, ids);
    }
  } else {
    encode_steps(text, index + 1, cache, ids);
  }
}

std::string HuggingFaceTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    const auto added = added_content_.find(id);
    text.append(added != added_content_.end() ? std::string_view(added->second) : model_.bytes_of(id));
  }
  return text;
}

}  // namespace teratron
