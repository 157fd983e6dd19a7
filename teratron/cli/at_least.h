// A lower bound of a whole number on the command line.
#pragma once

#include <charconv>

#include <CLI/CLI.hpp>

#include "teratron/base/error.h"

namespace teratron {

inline CLI::Validator at_least(int64_t minimum) {
  const auto problem = [minimum](const std::string& text) -> std::string {
    int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [parsed, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && parsed == end && value >= minimum) return "";
    return fmt::format("'{}' is not a whole number of at least {}", printable(text), minimum);
  };
  return {problem, fmt::format("{} or more", minimum)};
}

}  // namespace teratron
