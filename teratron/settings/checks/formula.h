// Products and quotients of settings, and whole numbers near a number, for rules and their advice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/settings/arguments.h"

namespace teratron {

/// "2 * context_parallel_size", "seq_length / context_parallel_size": names and numbers, from left to right.
struct Formula {
  std::string_view blamed;  // the last setting that is not a divisor
  int64_t factor = 1;       // product of its numbers
  std::optional<int64_t>
      value;  // none: a setting is not set, a quotient is not whole, or 64 bits are exceeded
};
Formula evaluate(std::string_view text, const Arguments& args);
/// The names in a formula.
std::vector<std::string> settings_in(std::string_view text);

/// "1, 2, 3, 6" for 6; at most twelve divisors.
std::string divisors_text(int64_t value);
/// "12 or 16": the multiples of `step` next to `value`.
std::string multiples_text(int64_t value, int64_t step);
/// a * b, or nullopt on overflow or without an operand.
std::optional<int64_t> product(std::optional<int64_t> a, std::optional<int64_t> b);
/// whole / divisor, or nullopt if it is not whole.
std::optional<int64_t> quotient(std::optional<int64_t> whole, std::optional<int64_t> divisor);

}  // namespace teratron
