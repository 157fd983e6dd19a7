// What someone may have meant by a name that does not exist.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// Typing errors between what was typed and a name; words are separated by underscores. A shortened name counts as one
/// error, left-out words as two.
size_t spelling_distance(const std::string& typed, const std::string& name);

/// The nearest of `names`, of several the shortest; empty when none is near. Of what was typed, 80 characters count.
std::string nearest_spelling(std::string_view typed, const std::vector<std::string>& names);

}  // namespace teratron
