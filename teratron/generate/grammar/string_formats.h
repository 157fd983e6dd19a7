// Strings of some formats of JSON Schema.
#pragma once

#include <optional>
#include <string_view>

#include "teratron/generate/grammar/byte_grammar.h"

namespace teratron {

inline constexpr const char* string_formats = "date, time, date-time or uuid";

/// A JSON string of the format; nullopt: it is not one of string_formats. Dates and times are those of RFC
/// 3339 without leap days and leap seconds.
std::optional<RuleId> string_of_format(ByteGrammar& grammar, std::string_view format);

}  // namespace teratron
