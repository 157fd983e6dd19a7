#include "teratron/generate/grammar/character_rules.h"

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

using unicode::CodeSet;
using Range = CodeSet::Range;

namespace {

constexpr uint32_t last_ascii = 0x7F;

std::string utf8(uint32_t code) {
  std::string text;
  unicode::append(code, text);
  return text;
}

std::string in_string(uint32_t code) {
  const std::string quoted = nlohmann::json(utf8(code)).dump();
  return quoted.substr(1, quoted.size() - 2);
}

// Code points of more than one byte. In a range that begins and ends with whole blocks of continuation bytes
// each byte has its range for itself; others are cut until they do.
void add_wide(ByteGrammar& grammar, Range range, std::vector<GrammarSequence>& one_of) {
  const auto cut = [&](uint32_t last) {
    add_wide(grammar, {range.first, last}, one_of);
    add_wide(grammar, {last + 1, range.last}, one_of);
  };
  for (const uint32_t last_of_length : {0x7FFU, 0xFFFFU}) {
    if (range.first <= last_of_length && range.last > last_of_length) return cut(last_of_length);
  }
  for (const uint32_t block : {0x3FU, 0xFFFU, 0x3FFFFU}) {
    if ((range.first & ~block) == (range.last & ~block)) break;
    if ((range.first & block) != 0) return cut(range.first | block);
    if ((range.last & block) != block) return cut((range.last & ~block) - 1);
  }
  const std::string first = utf8(range.first), last = utf8(range.last);
  GrammarSequence bytes;
  for (size_t i = 0; i < first.size(); ++i)
    bytes.push_back(grammar.bytes(byte_range(static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i]))));
  one_of.push_back(std::move(bytes));
}

}  // namespace

RuleId character_of(ByteGrammar& grammar, const CodeSet& set) {
  static const CodeSet characters({{0, 0xD7FF}, {0xE000, unicode::kLastCodePoint}});
  const CodeSet known = set & characters;
  const std::vector<Range>& ranges = known.ranges();
  if (ranges.size() == 1 && ranges[0].first == ranges[0].last)
    return grammar.add({grammar.text(in_string(ranges[0].first))});
  std::vector<GrammarSequence> one_of;
  ByteSet plain;
  for (const Range& range : ranges) {
    for (uint32_t code = range.first; code <= std::min(range.last, last_ascii); ++code) {
      const std::string text = in_string(code);
      if (text.size() == 1) {
        plain.set(code);
        continue;
      }
      GrammarSequence escape;
      for (const char each : text) escape.push_back(grammar.byte(each));
      one_of.push_back(std::move(escape));
    }
    if (range.last > last_ascii)
      add_wide(grammar, {std::max(range.first, last_ascii + 1), range.last}, one_of);
  }
  if (plain.any()) one_of.push_back({grammar.bytes(plain)});
  return grammar.add(std::move(one_of));
}

}  // namespace teratron
