// String utilities.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// The parts of `text` between separators; empty parts are dropped.
std::vector<std::string> split(std::string_view text, char separator = ' ');

/// ASCII lower case.
std::string to_lower(std::string text);

}  // namespace teratron
