#include "teratron/generate/grammar/json_rules.h"

#include <algorithm>
#include <map>

namespace teratron {

namespace {

constexpr int64_t most_indent = 32, most_digits = 15, most_exponent = 2;

// The character of UTF-8 that begins there.
std::string character_at(const std::string& text, size_t at) {
  size_t end = at + 1;
  while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0U) == 0x80U) ++end;
  return text.substr(at, end - at);
}

// ASCII in strings, without quotes and backslashes.
ByteSet plain_ascii() {
  ByteSet set = byte_range(0x20, 0x7E);
  set.reset('"');
  set.reset('\\');
  return set;
}

}  // namespace

GrammarSequence operator+(GrammarSequence first, const GrammarSequence& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

RuleId JsonRules::space() {
  ByteSet blanks;
  blanks.set(' ');
  blanks.set('\t');
  const RuleId blank = grammar_.add({{grammar_.bytes(blanks)}});
  return grammar_.add(
      {{}, {grammar_.byte(' ')}, {grammar_.byte('\n'), ByteGrammar::repeat(blank, 0, most_indent)}});
}

GrammarSequence JsonRules::spaced(char mark) {
  const GrammarElement around = ByteGrammar::rule(space());
  return {around, grammar_.byte(mark), around};
}

RuleId JsonRules::digits(int64_t least, int64_t most) {
  const RuleId digit = grammar_.add({{grammar_.bytes(byte_range('0', '9'))}});
  return grammar_.add({{ByteGrammar::repeat(digit, least, most)}});
}

RuleId JsonRules::integer() {
  const GrammarSequence digit_more = {grammar_.bytes(byte_range('1', '9')),
                                      ByteGrammar::rule(digits(0, most_digits))};
  const GrammarElement minus = grammar_.byte('-');
  return grammar_.add({{grammar_.byte('0')}, digit_more, GrammarSequence{minus} + digit_more});
}

RuleId JsonRules::number() {
  ByteSet e, sign;
  e.set('e');
  e.set('E');
  sign.set('+');
  sign.set('-');
  const RuleId fraction = grammar_.add({{}, {grammar_.byte('.'), ByteGrammar::rule(digits(1, most_digits))}});
  const GrammarElement power = ByteGrammar::rule(digits(1, most_exponent));
  const RuleId exponent =
      grammar_.add({{}, {grammar_.bytes(e), power}, {grammar_.bytes(e), grammar_.bytes(sign), power}});
  const RuleId whole =
      grammar_.add({{ByteGrammar::rule(integer())}, {grammar_.byte('-'), grammar_.byte('0')}});
  return grammar_.add({{ByteGrammar::rule(whole), ByteGrammar::rule(fraction), ByteGrammar::rule(exponent)}});
}

RuleId JsonRules::hex() {
  return grammar_.add({{grammar_.bytes(byte_range('0', '9') | byte_range('a', 'f') | byte_range('A', 'F'))}});
}

// Halves of surrogates only in pairs.
RuleId JsonRules::escape() {
  const GrammarElement digit = ByteGrammar::rule(hex());
  ByteSet simple, d, high, low, not_d = byte_range('0', '9') | byte_range('a', 'f') | byte_range('A', 'F');
  for (const char each : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'}) simple.set(static_cast<uint8_t>(each));
  d.set('d');
  d.set('D');
  not_d &= ~d;
  high = byte_range('8', '9') | byte_range('a', 'b') | byte_range('A', 'B');
  low = byte_range('c', 'f') | byte_range('C', 'F');
  const GrammarElement backslash = grammar_.byte('\\'), u = grammar_.byte('u');
  return grammar_.add({{backslash, grammar_.bytes(simple)},
                       {backslash, u, grammar_.bytes(not_d), digit, digit, digit},
                       {backslash, u, grammar_.bytes(d), grammar_.bytes(byte_range('0', '7')), digit, digit},
                       {backslash, u, grammar_.bytes(d), grammar_.bytes(high), digit, digit, backslash, u,
                        grammar_.bytes(d), grammar_.bytes(low), digit, digit}});
}

// UTF-8 of more than one byte (RFC 3629).
RuleId JsonRules::wide_character() {
  const auto set = [&](uint8_t first, uint8_t last) { return grammar_.bytes(byte_range(first, last)); };
  const GrammarElement tail = set(0x80, 0xBF);
  return grammar_.add({{set(0xC2, 0xDF), tail},
                       {set(0xE0, 0xE0), set(0xA0, 0xBF), tail},
                       {set(0xE1, 0xEC), tail, tail},
                       {set(0xED, 0xED), set(0x80, 0x9F), tail},
                       {set(0xEE, 0xEF), tail, tail},
                       {set(0xF0, 0xF0), set(0x90, 0xBF), tail, tail},
                       {set(0xF1, 0xF3), tail, tail, tail},
                       {set(0xF4, 0xF4), set(0x80, 0x8F), tail, tail}});
}

RuleId JsonRules::plain_character() {
  return grammar_.add({{grammar_.bytes(plain_ascii())}, {ByteGrammar::rule(wide_character())}});
}

RuleId JsonRules::character() {
  return grammar_.add({{ByteGrammar::rule(plain_character())}, {ByteGrammar::rule(escape())}});
}

RuleId JsonRules::string(int64_t least, int64_t most) {
  const GrammarElement quote = grammar_.byte('"');
  if (most == 0) return grammar_.add({{quote, quote}});
  return grammar_.add({{quote, ByteGrammar::repeat(character(), least, most), quote}});
}

std::vector<GrammarSequence> JsonRules::list(const GrammarSequence& element, int64_t least, int64_t most) {
  std::vector<GrammarSequence> lists;
  if (least == 0) lists.emplace_back();
  if (most == 0) return lists;
  GrammarSequence some = element;
  if (most != 1) {
    const RuleId more = grammar_.add({comma() + element});
    some.push_back(ByteGrammar::repeat(more, std::max<int64_t>(least - 1, 0), most < 0 ? -1 : most - 1));
  }
  some.push_back(ByteGrammar::rule(space()));
  lists.push_back(std::move(some));
  return lists;
}

RuleId JsonRules::object() {
  const GrammarSequence member =
      GrammarSequence{ByteGrammar::rule(string())} + colon() + GrammarSequence{ByteGrammar::rule(value())};
  const RuleId members = grammar_.add(list(member, 0, -1));
  return grammar_.add(
      {{grammar_.byte('{'), ByteGrammar::rule(space()), ByteGrammar::rule(members), grammar_.byte('}')}});
}

RuleId JsonRules::array() {
  const RuleId elements = grammar_.add(list({ByteGrammar::rule(value())}, 0, -1));
  return grammar_.add(
      {{grammar_.byte('['), ByteGrammar::rule(space()), ByteGrammar::rule(elements), grammar_.byte(']')}});
}

RuleId JsonRules::value() {
  if (value_ >= 0) return value_;
  value_ = grammar_.declare();
  grammar_.define(value_, {{ByteGrammar::rule(object())},
                           {ByteGrammar::rule(array())},
                           {ByteGrammar::rule(string())},
                           {ByteGrammar::rule(number())},
                           {ByteGrammar::rule(one_of({"true", "false", "null"}))}});
  return value_;
}

RuleId JsonRules::one_of(std::vector<std::string> texts) {
  std::ranges::sort(texts);
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return texts_from(texts, 0);
}

// A tree of their common beginnings: however many there are, a state has few stacks.
RuleId JsonRules::texts_from(const std::vector<std::string>& sorted, size_t at) {
  std::vector<GrammarSequence> one_of;
  for (size_t i = 0; i < sorted.size();) {
    if (sorted[i].size() == at) {
      one_of.emplace_back();
      ++i;
      continue;
    }
    std::vector<std::string> same;
    const char next = sorted[i][at];
    for (; i < sorted.size() && sorted[i].size() > at && sorted[i][at] == next; ++i)
      same.push_back(sorted[i]);
    if (same.size() == 1) {
      one_of.push_back(grammar_.text(std::string_view(same.front()).substr(at)));
      continue;
    }
    size_t end = at + 1;
    const std::string &first = same.front(), &last = same.back();
    while (end < first.size() && end < last.size() && first[end] == last[end]) ++end;
    one_of.push_back(grammar_.text(std::string_view(first).substr(at, end - at)) +
                     GrammarSequence{ByteGrammar::rule(texts_from(same, end))});
  }
  return grammar_.add(std::move(one_of));
}

RuleId JsonRules::other_name(std::vector<std::string> names) {
  for (std::string& name : names) name = name.substr(1, name.size() - 2);
  // No name without escapes equals one that needs them.
  std::erase_if(names, [](const std::string& name) { return name.find('\\') != name.npos; });
  return grammar_.add({{grammar_.byte('"'), ByteGrammar::rule(names_from(names, 0))}});
}

// What follows the first `at` bytes, which all of these names have, so that none of them comes out.
RuleId JsonRules::names_from(const std::vector<std::string>& names, size_t at) {
  std::vector<GrammarSequence> one_of;
  std::map<std::string, std::vector<std::string>> followers;
  for (const std::string& name : names) {
    if (name.size() > at) followers[character_at(name, at)].push_back(name);
  }
  const bool is_name = std::ranges::any_of(names, [&](const std::string& name) { return name.size() == at; });
  if (!is_name) one_of.push_back({grammar_.byte('"')});
  ByteSet ascii = plain_ascii();
  bool has_wide = false;
  for (const auto& [each, same] : followers) {
    has_wide = has_wide || each.size() > 1;
    if (each.size() == 1) ascii.reset(static_cast<uint8_t>(each.front()));
    GrammarSequence follows;
    for (const char byte : each) follows.push_back(grammar_.byte(byte));
    follows.push_back(ByteGrammar::rule(names_from(same, at + each.size())));
    one_of.push_back(std::move(follows));
  }
  const RuleId rest = grammar_.add({{ByteGrammar::repeat(plain_character(), 0), grammar_.byte('"')}});
  one_of.push_back({grammar_.bytes(ascii), ByteGrammar::rule(rest)});
  if (!has_wide) one_of.push_back({ByteGrammar::rule(wide_character()), ByteGrammar::rule(rest)});
  return grammar_.add(std::move(one_of));
}

}  // namespace teratron
