#include <algorithm>
#include <map>

#include "teratron/tokenizer/text/regex_syntax.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

CharacterKinds::CharacterKinds(const std::vector<unicode::CodeSet>& sets) : of_set_(sets.size()) {
  std::map<uint32_t, std::vector<size_t>> changes;  // the sets that begin or end at a code point
  changes[0] = {};
  for (size_t i = 0; i < sets.size(); ++i) {
    for (const auto& [first, last] : sets[i].ranges()) {
      changes[first].push_back(i);
      changes[last + 1].push_back(i);
    }
  }
  changes.erase(unicode::kLastCodePoint + 1);
  std::map<std::vector<bool>, uint8_t> kinds;  // by the sets that have it
  std::vector<bool> in_sets(sets.size());
  std::array<uint8_t, 256> block{};
  for (auto change = changes.begin(); change != changes.end(); ++change) {
    for (const size_t set : change->second) in_sets[set] = !in_sets[set];
    const auto [kind, is_new] = kinds.emplace(in_sets, static_cast<uint8_t>(kinds.size()));
    if (is_new && kinds.size() > 256) {
      valid_ = false;
      return;
    }
    for (size_t i = 0; is_new && i < sets.size(); ++i) {
      if (in_sets[i]) of_set_[i].push_back(kind->second);
    }
    const auto next = std::next(change);
    const uint32_t end = next == changes.end() ? unicode::kLastCodePoint + 1 : next->first;
    for (uint32_t code = change->first; code < end; ++code) {
      block[code & 0xff] = kind->second;
      if ((code & 0xff) != 0xff) continue;
      if (blocks_.empty() || block != blocks_.back()) blocks_.push_back(block);
      block_of_[code >> 8] = static_cast<uint16_t>(blocks_.size() - 1);
    }
  }
}

std::string CharacterKinds::of_text(std::string_view text) const {
  std::string kinds;
  kinds.reserve(text.size());
  for (const char *p = text.data(), *const end = p + text.size(); p < end;) {
    const auto byte = static_cast<uint8_t>(*p);
    const uint32_t code = byte < 0x80 ? (++p, byte) : unicode::next(p);
    kinds += static_cast<char>((*this)[code]);
  }
  return kinds;
}

}  // namespace teratron
