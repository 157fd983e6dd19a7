#include "teratron/tokenizer/jinja/syntax/string_literal.h"

#include <charconv>

#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron::jinja {

namespace {

// The code point of `digits` characters; advances `at`.
std::optional<uint32_t> code_of(std::string_view literal, size_t& at, size_t digits, int base) {
  const std::string_view text = literal.substr(at, digits);
  uint32_t code = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code, base);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != digits) return std::nullopt;
  at += digits;
  return code;
}

size_t octal_digits(std::string_view text) {
  size_t count = 0;
  while (count < 3 && count < text.size() && text[count] >= '0' && text[count] <= '7') ++count;
  return count;
}

bool append_code(std::optional<uint32_t> code, std::string& out) {
  if (!code || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000)) return false;
  unicode::append(*code, out);
  return true;
}

// The escape sequence whose letter is at `at`.
bool append_escape(std::string_view literal, size_t& at, std::string& out) {
  static constexpr std::string_view letters = "ntr\\'\"abfv\n", values = "\n\t\r\\'\"\a\b\f\v";
  const char letter = literal[at];
  if (const size_t octal = octal_digits(literal.substr(at)); octal > 0)
    return append_code(code_of(literal, at, octal, 8), out);
  ++at;
  if (letter == 'x') return append_code(code_of(literal, at, 2, 16), out);
  if (letter == 'u') return append_code(code_of(literal, at, 4, 16), out);
  if (letter == 'U') return append_code(code_of(literal, at, 8, 16), out);
  if (letter == 'N') return false;  // names of characters
  const size_t found = letters.find(letter);
  if (found == letters.npos) {
    out += {'\\', letter};
  } else if (letter != '\n') {  // a line that goes on
    out += values[found];
  }
  return true;
}

}  // namespace

std::optional<std::string> unescaped(std::string_view literal) {
  std::string value;
  for (size_t at = 0; at < literal.size();) {
    if (literal[at] != '\\') {
      value += literal[at++];
      continue;
    }
    ++at;
    if (at >= literal.size() || !append_escape(literal, at, value)) return std::nullopt;
  }
  return value;
}

}  // namespace teratron::jinja
