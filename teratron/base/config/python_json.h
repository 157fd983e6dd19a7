// JSON as Python's json module writes it.
#pragma once

#include <string>
#include <string_view>

namespace teratron {

/// Replaces the word Infinity, which is not JSON, by {"__float__": "Infinity"}, as transformers 5 writes it.
std::string without_bare_infinity(std::string_view text);

}  // namespace teratron
