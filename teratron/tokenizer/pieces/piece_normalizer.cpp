#include "teratron/tokenizer/pieces/piece_normalizer.h"

#include <algorithm>

#include "teratron/tokenizer/unicode/graphemes.h"

namespace teratron {

namespace {

bool is_space(uint32_t code) {
  return unicode::characters()[code] & unicode::space;
}

// ---- Precompiled ----

int64_t characters_in(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; });
}

class PrecompiledRules {
 public:
  explicit PrecompiledRules(const PrecompiledStep& step) : step_(step) {}

  std::vector<unicode::Change> apply(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
      const std::string_view next = text.substr(at, unicode::cluster_bytes(text.substr(at)));
      cluster(next);
      at += next.size();
    }
    return std::move(changes_);
  }
  bool is_modified() const { return modified_; }

 private:
  void cluster(std::string_view cluster) {
    constexpr size_t kLongest = 6;
    if (cluster.size() < kLongest && replace(cluster)) return;
    for (size_t at = 0; at < cluster.size();) {
      const std::string_view character = cluster.substr(at, unicode::sequence_bytes(cluster[at]));
      at += character.size();
      const char* p = character.data();
      if (!replace(character)) changes_.push_back({unicode::next(p), 0});
    }
  }

  // The last of more characters than before are insertions, the last of fewer takes the others with it.
  bool replace(std::string_view text) {
    const CharsMap::Match match = step_.map->shortest_prefix(text);
    if (match.bytes == 0) return false;
    modified_ = true;
    int64_t more = -characters_in(text);
    for (const char* p = match.replacement.data(); p < match.replacement.data() + match.replacement.size();) {
      changes_.push_back({unicode::next(p), 0});
      ++more;
    }
    for (int64_t i = 0; i < more; ++i) changes_[changes_.size() - 1 - static_cast<size_t>(i)].characters = 1;
    if (more < 0 && !changes_.empty()) changes_.back().characters += static_cast<int32_t>(more);
    return true;
  }

  const PrecompiledStep& step_;
  std::vector<unicode::Change> changes_;
  bool modified_ = false;
};

NormalizedString copy_of(NormalizedView text) {
  NormalizedString out(text);
  out.append(text);
  return out;
}

NormalizedString apply_one(const PrecompiledStep& step, NormalizedView text) {
  PrecompiledRules rules(step);
  const std::vector<unicode::Change> changes = rules.apply(text.text);
  return rules.is_modified() ? apply_changes(text, changes) : copy_of(text);
}

NormalizedString apply_one(const ReplaceStep& step, NormalizedView text) {
  NormalizedString out(text);
  for (const Regex::Piece& piece : step.pattern->find_all(text.text)) {
    if (piece.is_match) {
      out.append(step.content, text, static_cast<size_t>(piece.text.end() - text.text.begin()) - 1);
    } else {
      out.append(text.slice(piece.text));
    }
  }
  return out;
}

NormalizedString apply_one(const PrependStep& step, NormalizedView text) {
  NormalizedString out(text);
  out.append(step.text, text, 0);
  out.append(text);
  return out;
}

NormalizedString apply_one(const StripStep& step, NormalizedView text) {
  const char *begin = text.text.data(), *end = begin + text.text.size();
  while (step.left && begin < end) {
    const char* after = begin;
    if (!is_space(unicode::next(after))) break;
    begin = after;
  }
  while (step.right && begin < end) {
    const char* before = end;
    if (!is_space(unicode::previous(begin, before))) break;
    end = before;
  }
  return copy_of(text.slice({begin, static_cast<size_t>(end - begin)}));
}

NormalizedString apply_one(const unicode::Normalization* normalization, NormalizedView text) {
  return normalize(text, *normalization);
}

// ---- Pre-tokenizers ----

bool at_start_of_text(NormalizedView text) {
  return text.alignments == nullptr || text.alignments[0].begin == 0;
}

void split_at(const MetaspaceStep& step, NormalizedView text,
              const std::function<void(NormalizedView)>& part) {
  const NormalizedString replaced = apply_one(ReplaceStep{step.space, step.symbol}, text);
  NormalizedString prefixed(text);
  NormalizedView view = replaced.view();
  const bool prepends =
      step.scheme == PrependScheme::always || (step.scheme == PrependScheme::first && at_start_of_text(view));
  if (prepends && !view.text.starts_with(step.symbol)) {
    prefixed.append(step.symbol, view, 0);
    prefixed.append(view);
    view = prefixed.view();
  }
  if (!step.split) return part(view);
  for (const std::string_view word :
       apply_behavior(step.pattern->find_all(view.text), SplitBehavior::merged_with_next))
    part(view.slice(word));
}

void split_at(const SplitStep& step, NormalizedView text, const std::function<void(NormalizedView)>& part) {
  std::vector<Regex::Piece> pieces = step.pattern->find_all(text.text);
  for (Regex::Piece& piece : pieces) piece.is_match = piece.is_match != step.invert;
  for (const std::string_view word : apply_behavior(pieces, step.behavior)) part(text.slice(word));
}

}  // namespace

PrecompiledStep precompiled_step(const std::string& charsmap, const std::string& where) {
  return {std::make_shared<CharsMap>(charsmap, where)};
}

NormalizedString apply_step(const NormalizerStep& step, NormalizedView text) {
  if (text.text.empty()) return NormalizedString(text);
  return std::visit([&](const auto& one) { return apply_one(one, text); }, step);
}

void split_words(const std::vector<WordStep>& steps, size_t first, NormalizedView text,
                 const std::function<void(NormalizedView)>& word) {
  if (text.text.empty()) return;
  if (first == steps.size()) return word(text);
  const auto part = [&](NormalizedView piece) { split_words(steps, first + 1, piece, word); };
  std::visit([&](const auto& step) { split_at(step, text, part); }, steps[first]);
}

}  // namespace teratron
