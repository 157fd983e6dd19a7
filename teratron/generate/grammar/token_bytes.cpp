#include "teratron/generate/grammar/token_bytes.h"

#include <algorithm>
#include <array>
#include <optional>

namespace teratron {

namespace {

constexpr std::string_view replacement = "\xef\xbf\xbd";

// A token whose text is the same wherever it stands.
std::optional<int32_t> find_anchor(const Tokenizer& tokenizer, int64_t size) {
  for (int32_t id = 0; id < size; ++id) {
    if (tokenizer.is_special(id)) continue;
    const std::string one = tokenizer.decode({&id, 1});
    const bool is_letter = one.size() == 1 && one.front() >= '!' && one.front() <= '~';
    if (is_letter && tokenizer.decode(std::array{id, id}) == one + one) return id;
  }
  return std::nullopt;
}

}  // namespace

TokenBytes::TokenBytes(const Tokenizer& tokenizer, int64_t vocabulary)
    : places_(static_cast<size_t>(vocabulary), -1) {
  const int64_t size = std::min(vocabulary, tokenizer.vocab_size());
  const std::optional<int32_t> anchor = find_anchor(tokenizer, size);
  if (!anchor) return;
  for (int32_t id = 0; id < size; ++id) {
    if (tokenizer.is_special(id)) continue;
    const std::string text = tokenizer.decode(std::array{*anchor, id, *anchor});
    if (text.size() <= 2) continue;
    std::string bytes = text.substr(1, text.size() - 2);
    if (bytes == replacement) continue;
    if (bytes.size() == 1) single_.set(static_cast<uint8_t>(bytes.front()));
    entries_.push_back({.bytes = std::move(bytes), .id = id});
  }
  std::ranges::sort(entries_, {}, &Entry::bytes);
  for (size_t i = 0; i < entries_.size(); ++i) {
    places_[entries_[i].id] = static_cast<int32_t>(i);
    if (i == 0) continue;
    const std::string &before = entries_[i - 1].bytes, &bytes = entries_[i].bytes;
    entries_[i].common = static_cast<size_t>(std::ranges::mismatch(before, bytes).in1 - before.begin());
  }
}

std::string_view TokenBytes::of(int32_t id) const {
  const bool known = id >= 0 && id < vocabulary() && places_[id] >= 0;
  return known ? std::string_view(entries_[places_[id]].bytes) : std::string_view();
}

}  // namespace teratron
