#include "teratron/telemetry/progress.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "teratron/telemetry/log_lines.h"

namespace teratron {
namespace {

constexpr size_t kBarWidth = 24;
constexpr double kSmoothing = 0.1;

size_t terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

/// Bypasses the log; errors are ignored.
void write_terminal(std::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

std::string render_progress(const ProgressState& state, size_t width) {
  const int64_t total = std::max<int64_t>(state.total, 1);
  const int64_t done = std::clamp<int64_t>(state.iteration, 0, total);
  const size_t filled = static_cast<size_t>(double(done) / double(total) * double(kBarWidth));
  std::string line = fmt::format("[{:#<{}}{:-<{}}] {:3d}% {}/{}", "", filled, "", kBarWidth - filled,
                                 done * 100 / total, state.iteration, state.total);
  if (state.seconds_per_iteration > 0.0) {
    line += fmt::format(" | {:.0f} ms/it | left {}", state.seconds_per_iteration * 1000.0,
                        short_duration(double(total - done) * state.seconds_per_iteration));
    if (state.save_interval > 0 && done < total) {
      const int64_t next = std::min(state.save_interval - done % state.save_interval, total - done);
      line += fmt::format(" | next save {}", short_duration(double(next) * state.seconds_per_iteration));
    }
  }
  return line.substr(0, width);
}

ProgressBar::ProgressBar(const ProgressState& start, std::optional<bool> enabled)
    : state_(start), enabled_(enabled.value_or(isatty(STDERR_FILENO) != 0)) {}

ProgressBar::~ProgressBar() {
  clear();
}

void ProgressBar::step(int64_t iteration, double seconds) {
  state_.iteration = iteration;
  // The first step includes warm-up (allocation, caches): drop it once there is a second.
  const bool early = ++steps_ <= 2;
  state_.seconds_per_iteration =
      early ? seconds : (1.0 - kSmoothing) * state_.seconds_per_iteration + kSmoothing * seconds;
  const auto now = std::chrono::steady_clock::now();
  if (!enabled_ || (drawn_ && now - last_drawn_ < std::chrono::milliseconds(100))) return;
  last_drawn_ = now;
  draw();
}

void ProgressBar::draw() {
  write_terminal("\r\x1b[K" + render_progress(state_, terminal_width() - 1));
  drawn_ = true;
}

void ProgressBar::clear() {
  if (!drawn_) return;
  write_terminal("\r\x1b[K");
  drawn_ = false;
}

}  // namespace teratron
