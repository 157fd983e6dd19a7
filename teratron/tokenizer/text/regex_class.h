// Reads a regex character by character, and the parts of it that stand for sets of characters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "teratron/tokenizer/text/regex_syntax.h"

namespace teratron {

/// A part of a pattern that has no translation.
inline constexpr const char* kLongCaseFold = "(?i) of characters that equal several others, such as 'ss'";

class PatternReader {
 public:
  PatternReader(std::string_view pattern, RegexSyntax syntax, std::string where);

  RegexSyntax syntax() const { return syntax_; }
  bool at_end() const { return at_ == text_.size(); }
  size_t position() const { return at_; }
  void seek(size_t position) { at_ = position; }
  /// UserError(data) at the end.
  uint32_t peek() const;
  bool peek_is(uint32_t c) const { return !at_end() && text_[at_] == c; }
  uint32_t take();
  bool take_if(uint32_t c);
  bool take_if(std::string_view ascii);
  /// Decimal digits; nullopt if there are none.
  std::optional<int64_t> number(int64_t limit);

  /// Behind '['. `ignore_case` adds the other cases of its characters.
  unicode::CodeSet bracket(bool ignore_case);
  /// Behind '\': what stands for a set, such as \s; nullopt, with nothing read, for others.
  std::optional<unicode::CodeSet> escaped_set(bool in_class);
  /// Behind '\': the code point of any other escape.
  uint32_t escaped_code(bool in_class);

  unicode::CodeSet posix(std::string_view name) const;
  /// \w. In brackets it lacks some numbers of Latin-1, as in Oniguruma.
  unicode::CodeSet word(bool in_class) const;

  /// UserError(data): `what` is wrong with the pattern, or is not supported.
  [[noreturn]] void invalid(const std::string& what) const;
  [[noreturn]] void unknown(const std::string& what) const;

 private:
  struct Item;
  [[noreturn]] void reject(std::string what) const;
  unicode::CodeSet property(bool in_class);
  uint32_t hexadecimal(int most_digits);
  unicode::CodeSet nested_bracket(int depth);
  unicode::CodeSet items(int depth, bool& negated);
  Item item(int depth);
  std::optional<unicode::CodeSet> posix_bracket();

  std::u32string text_;
  size_t at_ = 0;
  RegexSyntax syntax_;
  std::string pattern_, where_;
};

}  // namespace teratron
