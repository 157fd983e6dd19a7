// What someone may have meant by a name that does not exist.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// The nearest of `names` by typing errors, of several the shortest; empty when none is near. Words are separated by
/// underscores. A shortened name counts as one error, left-out words as two. Of what was typed, 80 characters count.
std::string nearest_spelling(std::string_view typed, const std::vector<std::string>& names);

}  // namespace teratron
