#include "teratron/tokenizer/jinja/syntax/lexer.h"

#include <algorithm>
#include <array>

#include "teratron/tokenizer/jinja/syntax/string_literal.h"
#include "teratron/tokenizer/jinja/values/python_text.h"

namespace teratron::jinja {

UserError syntax_error(const std::string& name, uint32_t line, std::string what) {
  return data_error({.what = "the chat template is not valid: " + std::move(what),
                     .where = fmt::format("{}:{}", name, line),
                     .fix = "Correct the template"});
}

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

// One newline at the end does not count, and all newlines are \n.
std::string normalized(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      text += '\n';
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

constexpr std::array symbols = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : source_(normalized(source)), name_(name) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) between_tags();
    add(TokenType::end, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }

  void advance(size_t bytes) {
    const auto passed = std::string_view(source_).substr(at_, bytes);
    line_ += static_cast<uint32_t>(std::count(passed.begin(), passed.end(), '\n'));
    at_ += bytes;
  }

  void add(TokenType type, std::string text) { tokens_.push_back({type, std::move(text), line_}); }

  size_t next_tag() const {
    for (size_t at = source_.find('{', at_); at != source_.npos; at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() && std::string_view("{%#").find(source_[at + 1]) != std::string_view::npos)
        return at;
    }
    return source_.size();
  }

  // The text up to a tag, without the white space that the tag removes.
  std::string_view text_before(size_t tag) const {
    const std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    if (tag == source_.size()) return text;
    if (sign == '-') return stripped(text, Ends::right);
    if (sign == '+' || source_[tag + 1] == '{') return text;
    const size_t line = text.rfind('\n') + 1;  // 0 if there is none
    const bool at_line_start = line > 0 || at_ == 0 || source_[at_ - 1] == '\n';
    return at_line_start && stripped(text.substr(line), Ends::left).empty() ? text.substr(0, line) : text;
  }

  void between_tags() {
    const size_t tag = next_tag();
    const std::string_view text = text_before(tag);
    if (!text.empty()) add(TokenType::data, std::string(text));
    advance(tag - at_);
    if (tag == source_.size()) return;
    const char kind = source_[tag + 1];
    if (kind == '%' && raw()) return;
    advance(2);
    if (kind == '#') return comment();
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) advance(1);
    add(kind == '%' ? TokenType::block_begin : TokenType::variable_begin, "");
    code(kind == '%');
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == source_.npos) throw syntax_error(name_, line_, "a comment has no end");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    advance(end + 2 - at_);
    after_tag(sign);
  }

  // '-' removes the white space behind a tag, '+' nothing, and otherwise one newline goes.
  void after_tag(char sign) {
    if (sign == '-') {
      advance(rest().size() - stripped(rest(), Ends::left).size());
    } else if (sign != '+' && rest().starts_with('\n')) {
      advance(1);
    }
  }

  size_t skip_blanks(size_t at) const {
    return at + std::string_view(source_).substr(at).size() -
           stripped(std::string_view(source_).substr(at), Ends::left).size();
  }

  // {% word %} at `at`; what follows `word` is the result, or npos.
  size_t after_word(size_t at, std::string_view word) const {
    at += 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    at = skip_blanks(at);
    if (std::string_view(source_).substr(at).substr(0, word.size()) != word) return source_.npos;
    return skip_blanks(at + word.size());
  }

  bool raw() {
    const size_t begin = after_word(at_, "raw");
    if (begin == source_.npos) return false;
    const std::string_view behind = std::string_view(source_).substr(begin);
    if (!behind.starts_with("%}") && !behind.starts_with("-%}")) return false;
    advance(begin - at_ + (behind[0] == '-' ? 3 : 2));
    if (behind[0] == '-') after_tag('-');
    for (size_t tag = source_.find("{%", at_); tag != source_.npos; tag = source_.find("{%", tag + 1)) {
      const size_t end = after_word(tag, "endraw");
      if (end == source_.npos) continue;
      const size_t close =
          std::string_view("+-").find(source_[end]) == std::string_view::npos ? end : end + 1;
      if (source_.compare(close, 2, "%}") != 0) continue;
      const std::string_view text = text_before(tag);
      if (!text.empty()) add(TokenType::data, std::string(text));
      const char sign = close > end ? source_[end] : ' ';
      advance(close + 2 - at_);
      after_tag(sign);
      return true;
    }
    throw syntax_error(name_, line_, "'raw' has no 'endraw'");
  }

  // Whether the tag ends here; braces of a dict do not end it.
  bool tag_ends(bool is_block) {
    if (!brackets_.empty()) return false;
    const char sign = rest()[0];
    const bool has_sign = sign == '-' || (sign == '+' && is_block);
    if (rest().substr(has_sign ? 1 : 0, 2) != (is_block ? "%}" : "}}")) return false;
    add(is_block ? TokenType::block_end : TokenType::variable_end, "");
    advance(has_sign ? 3 : 2);
    after_tag(has_sign ? sign : is_block ? ' ' : '+');
    return true;
  }

  void code(bool is_block) {
    const uint32_t begin = line_;
    while (true) {
      advance(skip_blanks(at_) - at_);
      if (at_ >= source_.size()) throw syntax_error(name_, begin, "a tag has no end");
      if (tag_ends(is_block)) return;
      const char c = source_[at_];
      if (is_digit(c)) {
        number();
      } else if (begins_name(c)) {
        size_t end = at_;
        while (end < source_.size() && (begins_name(source_[end]) || is_digit(source_[end]))) ++end;
        add(TokenType::name, source_.substr(at_, end - at_));
        advance(end - at_);
      } else if (c == '\'' || c == '"') {
        string(c);
      } else {
        symbol();
      }
    }
  }

  // The end of a run of digits that single underscores may divide.
  size_t digits(size_t at) const {
    const auto is = [&](size_t i) {
      return i < source_.size() &&
             (is_digit(source_[i]) ||
              (source_[i] == '_' && i > at && i + 1 < source_.size() && is_digit(source_[i + 1])));
    };
    size_t end = at;
    while (is(end)) ++end;
    return end;
  }

  void number() {
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    size_t end = digits(at_);
    bool real = false;
    if (!after_dot && end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      end = digits(end + 1);
      real = true;
    }
    if (!after_dot && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
      if (digits(exponent) > exponent) {
        end = digits(exponent);
        real = true;
      }
    }
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    if (!real && text[0] == '0' && text.find_first_not_of('0') != text.npos)
      throw syntax_error(name_, line_, "an integer begins with 0");
    add(real ? TokenType::real : TokenType::integer, std::move(text));
    advance(end - at_);
  }

  void string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) throw syntax_error(name_, line_, "a string has no end");
    const auto value = unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1));
    if (!value) throw syntax_error(name_, line_, "a string has an escape sequence that is not valid");
    add(TokenType::string, *value);
    advance(end + 1 - at_);
  }

  void symbol() {
    for (const std::string_view each : symbols) {
      if (!rest().starts_with(each)) continue;
      if (std::string_view("([{").find(each) != std::string_view::npos) brackets_ += each;
      if (std::string_view(")]}").find(each) != std::string_view::npos) close_bracket(each[0]);
      add(TokenType::symbol, std::string(each));
      return advance(each.size());
    }
    throw syntax_error(name_, line_, fmt::format("unexpected '{}'", printable(rest().substr(0, 1))));
  }

  void close_bracket(char closing) {
    const std::string_view opening = closing == ')' ? "(" : closing == ']' ? "[" : "{";
    if (!brackets_.ends_with(opening))
      throw syntax_error(name_, line_, fmt::format("unexpected '{}'", closing));
    brackets_.pop_back();
  }

  const std::string source_;
  const std::string& name_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  std::string brackets_;  // that are open
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source, const std::string& name) {
  return Lexer(source, name).run();
}

}  // namespace teratron::jinja
