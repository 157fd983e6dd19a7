#include "teratron/tokenizer/text/chars_map.h"

#include <cstring>

#include "teratron/base/error.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {
namespace {

/// Bit fields of a double-array unit.
bool has_leaf(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t value_of(uint32_t unit) {
  return unit & 0x7fffffffu;
}
uint32_t label_of(uint32_t unit) {
  return unit & 0x800000ffu;
}
uint32_t offset_of(uint32_t unit) {
  return (unit >> 10) << ((unit & 0x200u) >> 6);
}

}  // namespace

CharsMap::CharsMap(std::string_view compiled, const std::string& where) {
  if (compiled.empty()) return;
  uint32_t trie_bytes = 0;
  const auto reject = [&](const std::string& what) {
    throw data_error({.what = fmt::format("invalid normalization rules in the model: {}", what),
                      .where = where,
                      .fix = "pass the original .model file of SentencePiece"});
  };
  if (compiled.size() < sizeof(trie_bytes)) reject("too short");
  std::memcpy(&trie_bytes, compiled.data(), sizeof(trie_bytes));
  compiled.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes > compiled.size())
    reject("wrong trie size");
  units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(units_.data(), compiled.data(), trie_bytes);
  replacements_ = compiled.substr(trie_bytes);
  if (replacements_.empty() || replacements_.back() != '\0') reject("the last replacement is not terminated");
  if (const std::string damage = find_damage(); !damage.empty()) reject(damage);
}

// Walks through the whole trie: every value is the start of a replacement, and every replacement is the value
// of some key.
std::string CharsMap::find_damage() const {
  if (!unicode::is_valid(replacements_)) return "a replacement is not UTF-8";
  std::vector<bool> seen(units_.size()), used(replacements_.size());
  std::vector<uint32_t> nodes = {offset_of(units_[0])};  // where their children are
  while (!nodes.empty()) {
    const uint32_t node = nodes.back();
    nodes.pop_back();
    for (uint32_t byte = 1; byte < 256; ++byte) {
      const uint32_t child = node ^ byte;
      if (child >= units_.size() || label_of(units_[child]) != byte) continue;
      if (seen[child]) continue;  // keys with equal ends share nodes
      seen[child] = true;
      const uint32_t below = child ^ offset_of(units_[child]);
      if (below >= units_.size()) return "a node is outside of the trie";
      nodes.push_back(below);
      if (!has_leaf(units_[child])) continue;
      const uint32_t value = value_of(units_[below]);
      if (value >= replacements_.size() || (value > 0 && replacements_[value - 1] != '\0'))
        return "a key has no replacement";
      used[value] = true;
    }
  }
  for (size_t i = 0; i < replacements_.size(); ++i) {
    const bool starts = i == 0 || replacements_[i - 1] == '\0';
    if (starts && !used[i]) return "a replacement has no key";
  }
  return "";
}

CharsMap::Match CharsMap::find(std::string_view text, Prefix prefix) const {
  Match match;
  if (units_.empty()) return match;
  // Every step is checked: the file is untrusted.
  uint32_t at = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    at ^= byte;
    if (at >= units_.size() || label_of(units_[at]) != byte) break;
    const uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    if (at >= units_.size() || value_of(units_[at]) >= replacements_.size()) break;
    match = {i + 1, replacements_.data() + value_of(units_[at])};
    if (prefix == Prefix::shortest) break;
  }
  return match;
}

}  // namespace teratron
