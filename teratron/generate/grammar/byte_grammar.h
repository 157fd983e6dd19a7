// Context-free grammars over bytes: what an answer may be.
//
//   ByteGrammar grammar;
//   const RuleId digit = grammar.add({{grammar.bytes(byte_range('0', '9'))}});
//   const RuleId number = grammar.add({{grammar.repeat(digit, 1, 16)}});
//
// Equal rules are one rule. A rule never begins with itself behind other rules.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

using ByteSet = std::bitset<256>;
ByteSet byte_range(uint8_t first, uint8_t last);

using RuleId = int32_t;

struct GrammarElement {
  enum class Kind : uint8_t { bytes, rule };
  Kind kind = Kind::bytes;
  int32_t index = 0;            // of the set of bytes, of which one follows, or of the rule
  int32_t least = 1, most = 1;  // of a rule: times; most below 0: any number
  bool operator==(const GrammarElement&) const = default;
};
/// Elements that follow each other; may be none.
using GrammarSequence = std::vector<GrammarElement>;

class ByteGrammar {
 public:
  static constexpr size_t most_elements = 200'000;

  /// One of the sequences.
  RuleId add(std::vector<GrammarSequence> one_of);
  /// A rule whose sequences come later, which may refer to it.
  RuleId declare();
  void define(RuleId rule, std::vector<GrammarSequence> one_of);

  GrammarElement bytes(const ByteSet& set);
  GrammarElement byte(char one) {
    return bytes(byte_range(static_cast<uint8_t>(one), static_cast<uint8_t>(one)));
  }
  static GrammarElement rule(RuleId rule) { return {.kind = GrammarElement::Kind::rule, .index = rule}; }
  static GrammarElement repeat(RuleId rule, int64_t least, int64_t most = -1);
  /// The elements of a text.
  GrammarSequence text(std::string_view bytes);
  /// The bytes that texts consist of, which a tokenizer must be able to write one by one.
  const ByteSet& text_bytes() const { return text_bytes_; }

  /// Removes sequences that no finite text follows; false if nothing is left of `root`.
  bool keep_finite(RuleId root);
  bool is_too_large() const { return elements_ > most_elements; }

  const std::vector<GrammarSequence>& sequences(RuleId rule) const { return rules_[rule]; }
  const ByteSet& set(const GrammarElement& element) const { return sets_[element.index]; }
  size_t size() const { return rules_.size(); }

 private:
  std::vector<std::vector<GrammarSequence>> rules_;
  std::vector<ByteSet> sets_;
  std::map<std::string, int32_t> known_sets_, known_rules_;
  ByteSet text_bytes_;
  size_t elements_ = 0;
};

}  // namespace teratron
