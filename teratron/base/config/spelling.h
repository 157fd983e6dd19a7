// Suggestions for misspelled names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// The name with the smallest edit distance to `typed`, the shortest of several; empty if none is close.
/// Words are separated by underscores. An abbreviation has distance 1, a subset of the words at most 2. Only
/// the first 80 characters of `typed` are compared.
std::string nearest_spelling(std::string_view typed, const std::vector<std::string>& names);

}  // namespace teratron
