// Texts that list words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// The words between `separator`s; empty ones are left out.
std::vector<std::string> words(std::string_view text, char separator = ' ');

}  // namespace teratron
