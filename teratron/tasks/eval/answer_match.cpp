#include "teratron/tasks/eval/answer_match.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "teratron/base/error.h"
#include "teratron/tasks/text/python_text.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Digits from `i` on, with commas between them if `commas`.
size_t digits_end(std::string_view text, size_t i, bool commas) {
  while (i < text.size() &&
         (is_digit(text[i]) || (commas && text[i] == ',' && i + 1 < text.size() && is_digit(text[i + 1]))))
    ++i;
  return i;
}

}  // namespace

std::optional<MatchRule> match_rule(std::string_view name) {
  if (name == "exact") return MatchRule::exact;
  if (name == "prefix") return MatchRule::prefix;
  if (name == "regex") return MatchRule::regex;
  if (name == "number") return MatchRule::number;
  return std::nullopt;
}

std::optional<double> last_number(std::string_view text) {
  std::optional<double> last;
  for (size_t i = 0; i < text.size();) {
    if (!is_digit(text[i])) {
      ++i;
      continue;
    }
    const bool word_before =
        i > 1 && text[i - 1] == '-' && std::isalnum(static_cast<unsigned char>(text[i - 2])) != 0;
    const size_t begin = i > 0 && text[i - 1] == '-' && !word_before ? i - 1 : i;
    size_t end = digits_end(text, i, true);
    if (end + 1 < text.size() && text[end] == '.' && is_digit(text[end + 1]))
      end = digits_end(text, end + 1, false);
    const std::string number = replace_all(text.substr(begin, end - begin), ",", "");
    double value = 0.0;
    std::from_chars(number.data(), number.data() + number.size(), value);
    last = value;
    i = end;
  }
  return last;
}

AnswerMatch::AnswerMatch(MatchRule rule, std::vector<std::string> answers, const std::string& where)
    : rule_(rule), answers_(std::move(answers)) {
  for (std::string& answer : answers_) {
    if (rule == MatchRule::regex) {
      patterns_.push_back(std::make_shared<const Regex>(answer, where, RegexSyntax::pcre2));
      continue;
    }
    answer = std::string(stripped(answer));
    if (rule == MatchRule::prefix && answer.empty())
      throw data_error({"every text begins with an empty answer", where, "Write the answer"});
    if (rule != MatchRule::number) continue;
    const std::optional<double> number = last_number(answer);
    if (!number) throw data_error({"the answer has no number", where, "Write one, or use another match"});
    numbers_.push_back(*number);
  }
}

bool AnswerMatch::matches(std::string_view text) const {
  const std::string valid = unicode::replace_invalid(text);
  const std::string_view body = stripped(valid);
  const auto any = [](const auto& list, const auto& test) {
    return std::any_of(list.begin(), list.end(), test);
  };
  switch (rule_) {
    case MatchRule::exact:
      return any(answers_, [&](const std::string& answer) { return body == answer; });
    case MatchRule::prefix:
      return any(answers_, [&](const std::string& answer) { return body.starts_with(answer); });
    case MatchRule::number: {
      const std::optional<double> number = last_number(valid);
      return number && any(numbers_, [&](double answer) { return answer == *number; });
    }
    case MatchRule::regex:
      break;
  }
  return any(patterns_, [&](const auto& pattern) {
    const std::vector<Regex::Piece> pieces = pattern->find_all(valid);
    return any(pieces, [](const Regex::Piece& piece) { return piece.is_match; });
  });
}

}  // namespace teratron
