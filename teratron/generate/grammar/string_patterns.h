// Regular expressions of JSON Schema's `pattern` as rules.
//
// Supported, as ECMA-262 has it: characters, '.', classes, \d \D \w \W \s \S, \t \n \r \f \v \0 \xHH \uHHHH
// \u{H}, escaped punctuation, groups (with names too, or without capture), '|', and * + ? {n} {n,} {n,m}, of
// which lazy ones mean the same. '^' may stand at the beginning and '$' at the end of the pattern or of its
// alternatives; where they do not, any text may precede or follow.
#pragma once

#include <stdexcept>
#include <string_view>

#include "teratron/generate/grammar/byte_grammar.h"

namespace teratron {

/// what(): which part of a pattern is wrong or not supported.
class UnsupportedPattern : public std::runtime_error {
  using runtime_error::runtime_error;
};

/// JSON strings whose text has a match. `pattern` is valid UTF-8. Throws UnsupportedPattern.
RuleId string_of_pattern(ByteGrammar& grammar, std::string_view pattern);

}  // namespace teratron
