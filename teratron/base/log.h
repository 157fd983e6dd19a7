// Messages for people. Results and Megatron's log lines go to stdout through print(); notices, warnings and
// errors go to stderr. Both are line-atomic, so lines of several rank threads never mix.
#pragma once

#include <string_view>

#include <fmt/format.h>

namespace teratron {

/// One line to stdout (a newline is added), flushed at once: parsers and pipes read it live.
void print_line(std::string_view line);
/// "notice: ..." on stderr: something that was decided for the user or has no effect.
void notice_line(std::string_view line);
/// "warning: ..." on stderr.
void warning_line(std::string_view line);
/// "error: ..." on stderr.
void error_line(std::string_view line);

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
