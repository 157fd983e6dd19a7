#include "teratron/tokenizer/text/regex_class.h"

#include "teratron/base/error.h"
#include "teratron/tokenizer/unicode/properties.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

using unicode::CodeSet;

namespace {

constexpr int kDeepestBracket = 100;

bool is_ascii_alphanumeric(uint32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

std::string text_of(uint32_t code) {
  std::string text;
  unicode::append(code, text);
  return text;
}

std::optional<uint32_t> control_escape(uint32_t c) {
  switch (c) {
    case 't':
      return '\t';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case 'a':
      return '\a';
    case 'e':
      return 0x1b;
    default:
      return std::nullopt;
  }
}

}  // namespace

PatternReader::PatternReader(std::string_view pattern, RegexSyntax syntax, std::string where)
    : syntax_(syntax), pattern_(pattern), where_(std::move(where)) {
  if (!unicode::is_valid(pattern)) invalid("bytes that are not UTF-8");
  for (const char* p = pattern_.data(); p < pattern_.data() + pattern_.size();) text_ += unicode::next(p);
}

void PatternReader::reject(std::string what) const {
  throw data_error({.what = std::move(what), .where = where_, .fix = "check the pre-tokenizer's pattern"});
}

void PatternReader::invalid(const std::string& what) const {
  reject(fmt::format("invalid regex '{}': {}, before character {}", printable(pattern_), what, at_ + 1));
}

void PatternReader::unknown(const std::string& what) const {
  reject(fmt::format("the regex '{}' has {}, which is not supported", printable(pattern_), what));
}

uint32_t PatternReader::peek() const {
  if (at_end()) invalid("it ends too early");
  return text_[at_];
}

uint32_t PatternReader::take() {
  const uint32_t c = peek();
  ++at_;
  return c;
}

bool PatternReader::take_if(uint32_t c) {
  const bool is_next = peek_is(c);
  at_ += is_next ? 1 : 0;
  return is_next;
}

bool PatternReader::take_if(std::string_view ascii) {
  const size_t before = at_;
  for (const char c : ascii) {
    if (take_if(static_cast<uint32_t>(c))) continue;
    at_ = before;
    return false;
  }
  return true;
}

std::optional<int64_t> PatternReader::number(int64_t limit) {
  std::optional<int64_t> value;
  while (!at_end() && peek() >= '0' && peek() <= '9') {
    value = value.value_or(0) * 10 + (take() - '0');
    if (*value > limit) unknown(fmt::format("more than {} repetitions", limit));
  }
  return value;
}

// ---- Escapes ----

CodeSet PatternReader::posix(std::string_view name) const {
  return *unicode::posix_class(name);
}

CodeSet PatternReader::word(bool in_class) const {
  return in_class && syntax_ == RegexSyntax::oniguruma ? posix("word") : *unicode::property("word");
}

CodeSet PatternReader::property(bool in_class) {
  bool negated = take() == 'P';
  std::string name;
  if (take_if('{')) {
    for (uint32_t c = take(); c != '}'; c = take()) name += text_of(c);
  } else if (syntax_ == RegexSyntax::rust) {
    name = text_of(take());
  } else {
    unknown("\\p without '{'");
  }
  std::string_view plain = name;
  if (plain.starts_with('^') && syntax_ == RegexSyntax::oniguruma) {
    negated = !negated;
    plain.remove_prefix(1);
  }
  if (syntax_ == RegexSyntax::rust) {
    for (const std::string_view kind : {"Script=", "sc=", "General_Category=", "gc="}) {
      if (plain.starts_with(kind)) plain.remove_prefix(kind.size());
    }
  }
  const std::optional<CodeSet> set = unicode::property(plain);
  if (!set) unknown(fmt::format("\\p{{{}}}", printable(name)));
  const CodeSet found = set == unicode::property("word") ? word(in_class) : *set;
  return negated ? found.complement() : found;
}

std::optional<CodeSet> PatternReader::escaped_set(bool in_class) {
  const auto taken = [this](const CodeSet& set, bool negated) {
    ++at_;
    return negated ? set.complement() : set;
  };
  const uint32_t c = peek();
  switch (c) {
    case 'd':
    case 'D':
      return taken(*unicode::property("Nd"), c == 'D');
    case 's':
    case 'S':
      return taken(posix("space"), c == 'S');
    case 'w':
    case 'W':
      return taken(word(in_class), c == 'W');
    case 'h':
    case 'H':
      return taken(posix("xdigit"), c == 'H');
    case 'p':
    case 'P':
      return property(in_class);
    case 'N':
    case 'O':
      if (syntax_ == RegexSyntax::rust) return std::nullopt;
      return taken(c == 'N' ? CodeSet::of('\n').complement() : CodeSet::all(), false);
    default:
      return std::nullopt;
  }
}

uint32_t PatternReader::hexadecimal(int most_digits) {
  // Oniguruma has no \u{...}.
  const bool braces = (most_digits == 2 || syntax_ == RegexSyntax::rust) && take_if('{');
  uint32_t code = 0;
  int digits = 0;
  while (!at_end() && digits < (braces ? 8 : most_digits)) {
    const uint32_t c = peek();
    const bool is_letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (!is_letter && !(c >= '0' && c <= '9')) break;
    code = code * 16 + (is_letter ? (c | 0x20U) - 'a' + 10 : c - '0');
    ++at_, ++digits;
  }
  const bool complete = braces ? digits > 0 && take_if('}') : digits == most_digits;
  // Without braces, \x80 is a byte for Oniguruma.
  const bool is_byte = !braces && most_digits == 2 && code >= 0x80 && syntax_ == RegexSyntax::oniguruma;
  if (!complete || is_byte || code > unicode::kLastCodePoint || (code >= 0xd800 && code < 0xe000))
    invalid("an escape of an invalid code point");
  return code;
}

uint32_t PatternReader::escaped_code(bool in_class) {
  const uint32_t c = take();
  if (const auto control = control_escape(c)) return *control;
  if (c == 'b' && in_class && syntax_ == RegexSyntax::oniguruma) return '\b';
  if (c == 'x') return hexadecimal(2);
  if (c == 'u') return hexadecimal(4);
  if (!is_ascii_alphanumeric(c)) return c;
  unknown(fmt::format("\\{}", text_of(c)));
}

// ---- Brackets ----

struct PatternReader::Item {
  CodeSet set;
  std::optional<uint32_t> code;  // if it is one character
};

CodeSet PatternReader::bracket(bool ignore_case) {
  bool negated = false;
  CodeSet set = items(0, negated);
  if (ignore_case && !negated && unicode::has_long_case_fold(set)) unknown(kLongCaseFold);
  if (ignore_case) set = unicode::with_other_case(set);
  return negated ? set.complement() : set;
}

CodeSet PatternReader::nested_bracket(int depth) {
  if (depth > kDeepestBracket) unknown("brackets nested more than 100 deep");
  bool negated = false;
  const CodeSet set = items(depth, negated);
  return negated ? set.complement() : set;
}

std::optional<CodeSet> PatternReader::posix_bracket() {
  const size_t begin = at_;
  if (!take_if(":")) return std::nullopt;
  const bool negated = take_if('^');
  std::string name;
  while (!at_end() && is_ascii_alphanumeric(peek())) name += static_cast<char>(take());
  if (!take_if(":]")) {
    at_ = begin;
    return std::nullopt;
  }
  std::optional<CodeSet> set = unicode::posix_class(name);
  if (!set) invalid(fmt::format("[:{}:] does not exist", name));
  if (syntax_ == RegexSyntax::rust) set = *set & posix("ascii");
  // Rust's classes are of ASCII, and there $+<=>^`|~ are punctuation, too.
  if (syntax_ == RegexSyntax::rust && name == "punct")
    set = *unicode::property("posixpunct") & posix("ascii");
  return negated ? set->complement() : *set;
}

PatternReader::Item PatternReader::item(int depth) {
  const uint32_t c = take();
  if (c == '[') {
    if (const auto set = posix_bracket()) return {*set, {}};
    return {nested_bracket(depth + 1), {}};
  }
  if (c != '\\') return {CodeSet::of(c), c};
  if (const auto set = escaped_set(/*in_class=*/true)) return {*set, {}};
  const uint32_t code = escaped_code(/*in_class=*/true);
  return {CodeSet::of(code), code};
}

// Up to the closing ']'.
CodeSet PatternReader::items(int depth, bool& negated) {
  negated = take_if('^');
  CodeSet all = CodeSet::all(), current;
  bool after_range = false;
  for (bool is_first = true; is_first || !take_if(']'); is_first = false) {
    if (syntax_ == RegexSyntax::rust && (take_if("--") || take_if("~~"))) unknown("-- or ~~ in brackets");
    if (take_if("&&")) {
      all = all & current;
      current = {};
      after_range = false;
      continue;
    }
    if (after_range && take_if('-')) {
      current = current | CodeSet::of('-');
      after_range = false;
      continue;
    }
    const Item first = item(depth);
    current = current | first.set;
    after_range = false;
    if (!take_if('-')) continue;
    const size_t last_begin = at_;
    if (peek_is(']') || take_if("&&")) {
      at_ = last_begin;
      current = current | CodeSet::of('-');
      continue;
    }
    const Item last = first.code ? item(depth) : Item{};
    if (!last.code || *last.code < *first.code) invalid("an invalid range in brackets");
    current = current | CodeSet({{*first.code, *last.code}});
    after_range = true;
  }
  return all & current;
}

}  // namespace teratron
