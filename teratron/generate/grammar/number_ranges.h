// Numbers between bounds as rules of JSON texts, without exponents.
#pragma once

#include <optional>
#include <string>

#include "teratron/generate/grammar/byte_grammar.h"

namespace teratron {

struct NumberBound {
  std::string number;  // as JSON
  bool is_included = true;
};
struct NumberRange {
  std::optional<NumberBound> least = {}, most = {};
  bool is_integer = false;
};

/// Numbers with up to 16 digits before and 15 behind the point. Bounds beyond them do not bind, or leave no
/// number (ByteGrammar::keep_finite), as do bounds that contradict each other. Throws std::invalid_argument
/// for a bound with more than 15 digits behind the point.
RuleId number_between(ByteGrammar& grammar, const NumberRange& range);

}  // namespace teratron
