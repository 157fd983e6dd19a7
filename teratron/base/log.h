// Console output. Results and Megatron-LM's log lines go to stdout (print()); notices, warnings and errors to
// stderr. Lines are written atomically, so those of several rank threads never interleave.
#pragma once

#include <string_view>

#include <fmt/format.h>

namespace teratron {

/// Writes a line to stdout and flushes it, so that pipes and parsers read it live.
void print_line(std::string_view line);
/// "notice: ..." on stderr: a default chosen for the user, or a setting without effect.
void notice_line(std::string_view line);
/// "warning: ..." on stderr.
void warning_line(std::string_view line);
/// "error: ..." on stderr. Removes the status line.
void error_line(std::string_view line);
/// Keeps `text` as the last line of the terminal, on stderr, below what is printed; an empty one removes it.
/// Cut to the width of the terminal. Shows nothing unless has_status_line().
void status_line(std::string_view text);
/// Whether stderr is a terminal that can erase a line (TERM is not "dumb").
bool has_status_line();

template <typename... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  print_line(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void notice(fmt::format_string<Args...> format, Args&&... args) {
  notice_line(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  warning_line(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace teratron
