#include "teratron/base/log.h"

#include <cstdio>
#include <string>

namespace teratron {

namespace {

// A single fwrite() per line: stdio locks the stream for its duration.
void write_line(std::FILE* stream, std::string_view prefix, std::string_view line) {
  std::string text;
  text.reserve(prefix.size() + line.size() + 1);
  text.append(prefix).append(line).push_back('\n');
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

}  // namespace

void print_line(std::string_view line) {
  write_line(stdout, "", line);
}

void notice_line(std::string_view line) {
  write_line(stderr, "notice: ", line);
}

void warning_line(std::string_view line) {
  write_line(stderr, "warning: ", line);
}

void error_line(std::string_view line) {
  write_line(stderr, "error: ", line);
}

}  // namespace teratron
