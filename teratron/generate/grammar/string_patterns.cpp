#include "teratron/generate/grammar/string_patterns.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/generate/grammar/character_rules.h"
#include "teratron/generate/grammar/json_rules.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

using unicode::CodeSet;

namespace {

constexpr int deepest_group = 100;
constexpr int64_t most_places = 20'000;  // characters of a pattern whose repetitions are written out

// A part of a pattern, and how many places it has with its repetitions written out.
struct Part {
  GrammarSequence elements;
  int64_t places = 0;
};

CodeSet set_of(uint32_t escape) {
  static const CodeSet digits({{'0', '9'}}), words({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}),
      spaces({{0x09, 0x0D},
              {' ', ' '},
              {0xA0, 0xA0},
              {0x1680, 0x1680},
              {0x2000, 0x200A},
              {0x2028, 0x2029},
              {0x202F, 0x202F},
              {0x205F, 0x205F},
              {0x3000, 0x3000},
              {0xFEFF, 0xFEFF}});
  switch (escape) {
    case 'd':
      return digits;
    case 'D':
      return digits.complement();
    case 'w':
      return words;
    case 'W':
      return words.complement();
    case 's':
      return spaces;
    case 'S':
      return spaces.complement();
    default:
      return {};
  }
}

bool is_alphanumeric(uint32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c > 0x7F;
}

class Parser {
 public:
  Parser(ByteGrammar& grammar, std::string_view pattern) : grammar_(grammar) {
    for (const char* p = pattern.data(); p < pattern.data() + pattern.size();) text_ += unicode::next(p);
  }

  RuleId string() {
    std::vector<GrammarSequence> one_of;
    const GrammarElement quote = grammar_.byte('"');
    const GrammarElement any = ByteGrammar::repeat(character_of(grammar_, CodeSet::all()), 0);
    do {
      GrammarSequence text = {quote};
      if (!take('^')) text.push_back(any);
      text = text + sequence().elements;
      if (!take('$')) text.push_back(any);
      text.push_back(quote);
      one_of.push_back(std::move(text));
    } while (take('|'));
    if (!at_end()) refuse(peek() == ')' ? "a ')' without '('" : "'$' that is not at the end");
    return grammar_.add(std::move(one_of));
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UnsupportedPattern(fmt::format("{} (near character {})", what, std::max<size_t>(at_, 1)));
  }
  bool at_end() const { return at_ == text_.size(); }
  uint32_t peek() const { return at_end() ? 0 : text_[at_]; }
  bool take(char32_t c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  uint32_t next(const char* missing) {
    if (at_end()) refuse(missing);
    return text_[at_++];
  }

  // Up to '|', ')', '$' or the end.
  Part sequence() {
    Part all;
    while (!at_end() && peek() != '|' && peek() != ')' && peek() != '$') {
      const Part one = term();
      all.elements = all.elements + one.elements;
      all.places += one.places;
      if (all.places > most_places) refuse("a pattern that is too large");
    }
    return all;
  }

  Part term() {
    auto [rule, places] = atom();
    const auto [least, most] = times();
    if (most == 0) return {};
    places = std::max<int64_t>(places, 1) * std::max<int64_t>({least, most, 1});
    if (least == 1 && most == 1) return {{ByteGrammar::rule(rule)}, places};
    return {{ByteGrammar::repeat(rule, least, most)}, places};
  }

  // The quantifier; most below 0: any number.
  std::pair<int64_t, int64_t> times() {
    std::pair<int64_t, int64_t> found = {1, 1};
    if (take('*')) {
      found = {0, -1};
    } else if (take('+')) {
      found = {1, -1};
    } else if (take('?')) {
      found = {0, 1};
    } else if (take('{')) {
      found = counts();
    } else {
      return found;
    }
    take('?');
    return found;
  }

  std::pair<int64_t, int64_t> counts() {
    const char* const wrong = "a '{' that is not {n}, {n,} or {n,m}";
    const std::optional<int64_t> least = number();
    if (!least) refuse(wrong);
    std::optional<int64_t> most = least;
    if (take(',')) {
      most = number();
      if (most && *most < *least) refuse("{n,m} with n above m");
    }
    if (!take('}')) refuse(wrong);
    return {*least, most.value_or(-1)};
  }

  std::optional<int64_t> number() {
    std::optional<int64_t> found;
    for (; peek() >= '0' && peek() <= '9'; ++at_)
      found = std::min<int64_t>(found.value_or(0) * 10 + (peek() - '0'), most_places + 1);
    return found;
  }

  std::pair<RuleId, int64_t> atom() {
    const uint32_t c = next("");
    if (c == '(') return group();
    if (c == '*' || c == '+' || c == '?' || c == '{') refuse("a quantifier without what it repeats");
    if (c == '^') refuse("'^' that is not at the beginning");
    if (c == ']' || c == '}') refuse("a bracket that closes nothing");
    return {character_of(grammar_, set(c)), 1};
  }

  CodeSet set(uint32_t c) {
    if (c == '[') return bracket();
    if (c == '\\') return escaped(false);
    static const CodeSet ends_of_lines({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
    return c == '.' ? ends_of_lines.complement() : CodeSet::of(c);
  }

  std::pair<RuleId, int64_t> group() {
    if (++depth_ > deepest_group) refuse("groups that are nested too deeply");
    if (take('?')) {
      const bool is_named = take('<') && peek() != '=' && peek() != '!';
      while (is_named && peek() != '>') next("a name of a group without '>'");
      if (!is_named && peek() != ':') refuse("looking ahead or behind, or a flag, '(?'");
      ++at_;
    }
    std::vector<GrammarSequence> one_of;
    int64_t places = 0;
    do {
      Part part = sequence();
      places += part.places;
      one_of.push_back(std::move(part.elements));
    } while (take('|'));
    if (peek() == '$') refuse("'$' in a group");
    if (!take(')')) refuse("a '(' without ')'");
    --depth_;
    return {grammar_.add(std::move(one_of)), places};
  }

  CodeSet bracket() {
    const bool is_complement = take('^');
    CodeSet all;
    while (!take(']')) {
      const CodeSet first = item();
      const bool is_range = peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (!is_range) {
        all = all | first;
        continue;
      }
      ++at_;
      const uint32_t from = only(first), to = only(item());
      if (from > to) refuse("a range of characters that ends before it begins");
      all = all | CodeSet({{from, to}});
    }
    return is_complement ? all.complement() : all;
  }

  CodeSet item() {
    const uint32_t c = next("a '[' without ']'");
    return c == '\\' ? escaped(true) : CodeSet::of(c);
  }

  uint32_t only(const CodeSet& set) {
    const auto& ranges = set.ranges();
    if (ranges.size() != 1 || ranges[0].first != ranges[0].last) refuse("a range with a class at an end");
    return ranges[0].first;
  }

  CodeSet escaped(bool in_bracket) {
    const uint32_t c = next("a '\\' at the end");
    if (const CodeSet known = set_of(c); !known.ranges().empty()) return known;
    constexpr std::string_view letters = "tnrfv0", codes = "\t\n\r\f\v";
    const bool is_octal = c == '0' && peek() >= '0' && peek() <= '9';
    if (const size_t at = c <= 0x7F ? letters.find(static_cast<char>(c)) : letters.npos;
        at != letters.npos && !is_octal)
      return CodeSet::of(at < codes.size() ? static_cast<uint32_t>(codes[at]) : 0);
    if (c == 'b' && in_bracket) return CodeSet::of('\b');
    if (c == 'x') return CodeSet::of(hexadecimal(2));
    if (c == 'u') return CodeSet::of(code_point());
    if (is_alphanumeric(c)) {
      std::string letter;
      unicode::append(c, letter);
      refuse(fmt::format("'\\{}'", printable(letter)));
    }
    return CodeSet::of(c);
  }

  uint32_t code_point() {
    if (take('{')) {
      const uint32_t code = hexadecimal(6);
      if (!take('}') || code > unicode::kLastCodePoint) refuse("'\\u{' without a code point");
      return code;
    }
    const uint32_t code = hexadecimal(4);
    if (code < 0xD800 || code > 0xDFFF) return code;
    const bool has_more = code < 0xDC00 && take('\\') && take('u');
    const uint32_t low = has_more ? hexadecimal(4) : 0;
    if (low < 0xDC00 || low > 0xDFFF) refuse("half a surrogate pair");
    return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }

  // As many digits, or in braces up to as many.
  uint32_t hexadecimal(int digits) {
    uint32_t code = 0;
    for (int i = 0; i < digits; ++i) {
      if (digits == 6 && i > 0 && peek() == '}') break;
      const uint32_t c = next("an escape that is too short");
      const uint32_t lower = c | 0x20U;
      if (!((c >= '0' && c <= '9') || (lower >= 'a' && lower <= 'f'))) refuse("an escape that is too short");
      code = code * 16 + (c <= '9' ? c - '0' : lower - 'a' + 10);
    }
    return code;
  }

  ByteGrammar& grammar_;
  std::u32string text_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

RuleId string_of_pattern(ByteGrammar& grammar, std::string_view pattern) {
  return Parser(grammar, pattern).string();
}

}  // namespace teratron
