// Whether a generated text is the answer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/text/regex_split.h"

namespace teratron {

enum class MatchRule : uint8_t {
  exact,   // the text, without blanks around it
  prefix,  // the text begins with the answer, after blanks
  regex,   // the pattern is found in the text
  number,  // the last number of the text is that of the answer: 1,234.5 and -3
};

/// nullopt for other names.
std::optional<MatchRule> match_rule(std::string_view name);

/// The last number in a text, without the commas between its digits.
std::optional<double> last_number(std::string_view text);

class AnswerMatch {
 public:
  /// Any of `answers` will do. UserError(data) at `where` for an invalid pattern, an empty prefix, or an
  /// answer without a number.
  AnswerMatch(MatchRule rule, std::vector<std::string> answers, const std::string& where);
  /// `text` may be invalid UTF-8. UserError(data) if a pattern needs too much backtracking.
  bool matches(std::string_view text) const;

 private:
  MatchRule rule_;
  std::vector<std::string> answers_;
  std::vector<double> numbers_;
  std::vector<std::shared_ptr<const Regex>> patterns_;
};

}  // namespace teratron
