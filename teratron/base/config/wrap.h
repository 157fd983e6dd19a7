// Lines of help texts.
#pragma once

#include <string>

namespace teratron {

/// Breaks `text` at blanks into lines of at most `width` columns; all but the first are indented.
std::string wrap(const std::string& text, size_t indent, size_t width);

}  // namespace teratron
