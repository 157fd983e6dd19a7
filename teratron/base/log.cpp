#include "teratron/base/log.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include <sys/ioctl.h>
#include <unistd.h>

namespace teratron {

namespace {

constexpr std::string_view erase = "\r\x1b[K";
constexpr size_t echo_width = 3;  // the cursor, and the terminal's ^C

struct Status {
  std::mutex mutex;  // held while a line or the status is written
  std::string text;
};

Status& status() {
  static auto* const shown = new Status;  // lint: allow(global-state): one terminal per process, as stdout
  return *shown;
}

void write_text(std::FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > echo_width ? size.ws_col : 80;
}

void draw(const Status& status) {
  if (status.text.empty()) return;
  write_text(stderr, std::string(erase) + status.text.substr(0, terminal_width() - echo_width));
}

// One fwrite() per line: stdio locks the stream for its duration.
void write_line(std::FILE* stream, std::string_view prefix, std::string_view line) {
  const std::lock_guard lock(status().mutex);
  const bool over_status = !status().text.empty() && isatty(fileno(stream)) != 0;
  std::string text;
  text.reserve(prefix.size() + line.size() + erase.size() + 1);
  if (over_status) text.append(erase);
  text.append(prefix).append(line).push_back('\n');
  write_text(stream, text);
  if (over_status) draw(status());
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
  status_line("");
  write_line(stderr, "error: ", line);
}

bool has_status_line() {
  const char* const type = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && (!type || std::string_view(type) != "dumb");
}

void status_line(std::string_view text) {
  Status& shown = status();
  const std::lock_guard lock(shown.mutex);
  if (!has_status_line() || shown.text == text) return;
  if (text.empty()) write_text(stderr, erase);
  shown.text = text;
  draw(shown);
}

}  // namespace teratron
