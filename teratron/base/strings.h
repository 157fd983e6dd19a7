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

/// For a terminal, which would obey the control characters of texts of models and data sets: those but
/// newlines and tabs as "\x1b". UTF-8; not truncated.
std::string terminal_text(std::string_view text);
/// terminal_text() if stdout is a terminal; else `text`.
std::string stdout_text(std::string_view text);

}  // namespace teratron
