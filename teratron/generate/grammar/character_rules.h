// Characters inside JSON strings as rules.
#pragma once

#include "teratron/generate/grammar/byte_grammar.h"
#include "teratron/tokenizer/unicode/code_set.h"

namespace teratron {

/// One character of the set, in UTF-8; quotes, backslashes and control characters as their shortest escape.
/// Surrogates are left out.
RuleId character_of(ByteGrammar& grammar, const unicode::CodeSet& set);

}  // namespace teratron
