#include "teratron/generate/grammar/byte_grammar.h"

#include <algorithm>
#include <limits>

namespace teratron {

namespace {

std::string key_of(const std::vector<GrammarSequence>& one_of) {
  std::string key;
  const auto put = [&key](int32_t value) { key.append(reinterpret_cast<const char*>(&value), sizeof value); };
  for (const GrammarSequence& sequence : one_of) {
    put(-1);
    for (const GrammarElement& each : sequence) {
      put(static_cast<int32_t>(each.kind));
      put(each.index);
      put(each.least);
      put(each.most);
    }
  }
  return key;
}

}  // namespace

ByteSet byte_range(uint8_t first, uint8_t last) {
  ByteSet set;
  for (size_t byte = first; byte <= last; ++byte) set.set(byte);
  return set;
}

RuleId ByteGrammar::add(std::vector<GrammarSequence> one_of) {
  const auto [known, is_new] = known_rules_.emplace(key_of(one_of), static_cast<RuleId>(rules_.size()));
  if (is_new) define(declare(), std::move(one_of));
  return known->second;
}

RuleId ByteGrammar::declare() {
  rules_.emplace_back();
  return static_cast<RuleId>(rules_.size()) - 1;
}

void ByteGrammar::define(RuleId rule, std::vector<GrammarSequence> one_of) {
  for (const GrammarSequence& each : one_of) elements_ += 1 + each.size();
  rules_[rule] = std::move(one_of);
}

GrammarElement ByteGrammar::bytes(const ByteSet& set) {
  const auto [known, is_new] = known_sets_.emplace(set.to_string(), static_cast<int32_t>(sets_.size()));
  if (is_new) sets_.push_back(set);
  return {.kind = GrammarElement::Kind::bytes, .index = known->second};
}

GrammarElement ByteGrammar::repeat(RuleId rule, int64_t least, int64_t most) {
  constexpr int64_t largest = std::numeric_limits<int32_t>::max();
  return {.kind = GrammarElement::Kind::rule,
          .index = rule,
          .least = static_cast<int32_t>(std::min(least, largest)),
          .most = static_cast<int32_t>(std::min(most, largest))};
}

GrammarSequence ByteGrammar::text(std::string_view bytes) {
  GrammarSequence sequence;
  for (const char each : bytes) {
    text_bytes_.set(static_cast<uint8_t>(each));
    sequence.push_back(byte(each));
  }
  return sequence;
}

bool ByteGrammar::keep_finite(RuleId root) {
  std::vector<bool> ends(rules_.size(), false);
  const auto sequence_ends = [&](const GrammarSequence& sequence) {
    return std::ranges::all_of(sequence, [&](const GrammarElement& each) {
      return each.kind == GrammarElement::Kind::bytes ? set(each).any() : each.least == 0 || ends[each.index];
    });
  };
  std::vector<std::vector<RuleId>> users(rules_.size());
  std::vector<RuleId> todo;
  for (RuleId rule = 0; rule < static_cast<RuleId>(rules_.size()); ++rule) {
    todo.push_back(rule);
    for (const GrammarSequence& sequence : rules_[rule]) {
      for (const GrammarElement& each : sequence) {
        if (each.kind == GrammarElement::Kind::rule) users[each.index].push_back(rule);
      }
    }
  }
  while (!todo.empty()) {
    const RuleId rule = todo.back();
    todo.pop_back();
    if (ends[rule] || !std::ranges::any_of(rules_[rule], sequence_ends)) continue;
    ends[rule] = true;
    todo.insert(todo.end(), users[rule].begin(), users[rule].end());
  }
  for (std::vector<GrammarSequence>& rule : rules_) {
    std::erase_if(rule, [&](const GrammarSequence& sequence) { return !sequence_ends(sequence); });
    for (GrammarSequence& sequence : rule) {
      // What may be left out and has no finite text is left out.
      std::erase_if(sequence, [&](const GrammarElement& each) {
        return each.kind == GrammarElement::Kind::rule && !ends[each.index];
      });
    }
  }
  return ends[root];
}

}  // namespace teratron
