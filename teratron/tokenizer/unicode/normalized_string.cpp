#include "teratron/tokenizer/unicode/normalized_string.h"

#include <algorithm>

namespace teratron {

NormalizedString NormalizedString::with_alignments(std::string_view original) {
  NormalizedString out({});
  out.aligned_ = true;
  out.text_ = unicode::is_valid(original) ? std::string(original) : unicode::replace_invalid(original);
  out.alignments_.reserve(out.text_.size());
  for (const char c : out.text_) {
    const bool begins = (static_cast<uint8_t>(c) & 0xc0) != 0x80;
    const int64_t at = out.alignments_.empty() ? 0 : out.alignments_.back().begin + (begins ? 1 : 0);
    out.alignments_.push_back({at, at + 1});
  }
  return out;
}

NormalizedString normalize(NormalizedView text, const unicode::Normalization& normalization) {
  NormalizedString out(text);
  if (out.aligned_) return apply_changes(text, normalization.changes(text.text));
  out.text_ = normalization.text(text.text);
  return out;
}

NormalizedString apply_changes(NormalizedView text, const std::vector<unicode::Change>& changes) {
  NormalizedString out(text);
  size_t at = 0;  // first byte not yet replaced
  const auto skip_character = [&] {
    if (at < text.text.size()) at += unicode::sequence_bytes(text.text[at]);
  };
  for (const unicode::Change& change : changes) {
    std::string bytes;
    unicode::append(change.code, bytes);
    const bool inserted = change.characters > 0;
    out.append(bytes, text, std::min(inserted && at > 0 ? at - 1 : at, text.text.size() - 1));
    if (inserted) continue;
    for (int32_t i = change.characters; i <= 0; ++i) skip_character();
  }
  return out;
}

}  // namespace teratron
