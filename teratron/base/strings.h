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

/// A word of a command line, in single quotes where a shell needs them.
std::string shell_word(const std::string& word);
/// The words of this process, as the kernel has them: secrets are hidden (settings/secret_flags.h).
std::vector<std::string> words_of_process();
/// words_of_process() for a shell, printable.
std::string command_line_of_process();

}  // namespace teratron
