// Command-line arguments as options of a table.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/config/config.h"

namespace teratron {

inline bool is_help(std::string_view arg) {
  return arg == "--help" || arg == "-h";
}

/// How arguments outside the table are treated.
enum class OtherArguments : uint8_t {
  refused,
  collected,  // returned, wherever they stand
  command,    // all from the first word without a flag (or "--") on are returned
};

/// read_flags() that returns the other arguments.
std::vector<std::string> read_arguments(const Schema& schema, std::span<const std::string> args,
                                        OtherArguments others, ParseResult& result);

}  // namespace teratron
