#include "teratron/base/log.h"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "teratron/base/background_log.h"
#include "teratron/base/output_queue.h"

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

using Priority = OutputQueue::Priority;
constexpr std::chrono::seconds kPatience{2};

/// One queue for both where they are the same file, so that lines keep their order.
struct Background {
  std::shared_ptr<OutputQueue> out, messages;
};
// stdout and stderr belong to the process. Never deleted: threads may print while it exits.
std::atomic<Background*> background{nullptr};  // lint: allow(global-state): see above

thread_local int silent = 0;  // lint: allow(global-state): SilentPrint objects of this thread

bool same_file(int one, int other) {
  struct stat first{}, second{};
  return fstat(one, &first) == 0 && fstat(other, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

void write_text(std::FILE* stream, std::string text) {
  if (const Background* queues = background) {
    if (stream == stdout) return queues->out->push(STDOUT_FILENO, std::move(text), Priority::normal);
    return queues->messages->push(STDERR_FILENO, std::move(text), Priority::urgent);
  }
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > echo_width ? size.ws_col : 80;
}

std::string drawn(const Status& status) {
  return std::string(erase) + status.text.substr(0, terminal_width() - echo_width);
}

// One write per line, with the status below it.
void write_line(std::FILE* stream, std::string_view prefix, std::string_view line) {
  const std::lock_guard lock(status().mutex);
  const bool over_status = !status().text.empty() && isatty(fileno(stream)) != 0;
  std::string text;
  text.reserve(prefix.size() + line.size() + erase.size() + 1);
  if (over_status) text.append(erase);
  text.append(prefix).append(line).push_back('\n');
  if (over_status) text += drawn(status());
  write_text(stream, std::move(text));
}

}  // namespace

void log_in_background(const std::string& elsewhere) {
  if (background) return;
  std::signal(SIGPIPE, SIG_IGN);
  std::fflush(nullptr);
  auto queues = std::make_unique<Background>();
  OutputQueue::Options options{.elsewhere = elsewhere};
  queues->messages = std::make_shared<OutputQueue>(options);
  options.on_closed = [elsewhere] {
    warning_line("nothing reads stdout any more, and its lines are dropped: the job goes on. " + elsewhere);
  };
  const bool same = same_file(STDOUT_FILENO, STDERR_FILENO);
  queues->out = same ? queues->messages : std::make_shared<OutputQueue>(options);
  background = queues.release();
}

void flush_log() {
  const Background* const queues = background;
  if (!queues) return;
  queues->out->flush(kPatience);
  queues->messages->flush(kPatience);
}

SilentPrint::SilentPrint() {
  ++silent;
}

SilentPrint::~SilentPrint() {
  --silent;
}

void print_line(std::string_view line) {
  if (silent > 0) return;
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
  shown.text = text;
  if (text.empty()) return write_text(stderr, std::string(erase));
  const Background* const queues = background;
  if (!queues) return write_text(stderr, drawn(shown));
  queues->messages->push_if_idle(STDERR_FILENO, drawn(shown));  // else it follows the next line
}

}  // namespace teratron
