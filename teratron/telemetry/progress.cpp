#include "teratron/telemetry/progress.h"

#include <algorithm>

#include <fmt/format.h>

#include "teratron/base/log.h"
#include "teratron/telemetry/log_lines.h"

namespace teratron {
namespace {

constexpr size_t kBarWidth = 24;
constexpr double kSmoothing = 0.1;

}  // namespace

std::string progress_text(const ProgressState& state) {
  const int64_t total = std::max<int64_t>(state.total, 1);
  const int64_t done = std::clamp<int64_t>(state.iteration, 0, total);
  std::string text = fmt::format("{}{}{:3d}% {}/{}", state.what, state.what.empty() ? "" : " ",
                                 done * 100 / total, state.iteration, state.total);
  if (state.seconds_per_iteration <= 0.0) return text;
  const auto time_for = [&](int64_t steps) {
    return short_duration(std::max(double(steps) * state.seconds_per_iteration - state.seconds_since, 0.0));
  };
  text +=
      fmt::format(" | {:.0f} ms/it | left {}", state.seconds_per_iteration * 1000.0, time_for(total - done));
  if (state.save_interval > 0 && done < total) {
    const int64_t next = std::min(state.save_interval - done % state.save_interval, total - done);
    text += fmt::format(" | next save {}", time_for(next));
  }
  return text;
}

std::string progress_bar(const ProgressState& state) {
  const double part = double(state.iteration) / double(std::max<int64_t>(state.total, 1));
  const auto filled = static_cast<size_t>(std::clamp(part, 0.0, 1.0) * double(kBarWidth));
  return fmt::format("[{:#<{}}{:-<{}}] {}", "", filled, "", kBarWidth - filled, progress_text(state));
}

ProgressOutput progress_output(const Environment& environment) {
  // Other ranks would print into the bar (torchrun).
  const bool has_peers =
      environment("LOCAL_WORLD_SIZE").value_or("1") != "1" && environment("TERATRON_BACKEND") != "threads";
  if (has_status_line() && !has_peers) return {.bar = status_line};
  if (environment("TERATRON_PROGRESS") == "launcher")
    return {.bar = [](std::string_view text) { print_line(fmt::format("{}{}", progress_mark, text)); }};
  return {.line = print_line};
}

Progress::Progress(const ProgressState& start, ProgressOutput output)
    : output_(std::move(output)),
      state_(start),
      last_step_(Clock::now()),
      last_line_(last_step_),
      thread_([this] { run(); }) {}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void Progress::step(int64_t iteration, double seconds) {
  const std::lock_guard lock(mutex_);
  state_.iteration = iteration;
  last_step_ = Clock::now();
  // The first step includes warm-up (allocation, caches): drop it once there is a second.
  const bool early = ++steps_ <= 2;
  double& mean = state_.seconds_per_iteration;
  mean = early ? seconds : (1.0 - kSmoothing) * mean + kSmoothing * seconds;
}

void Progress::evaluating(int64_t done, int64_t total) {
  const std::lock_guard lock(mutex_);
  if (!evaluation_) evaluation_began_ = Clock::now();
  last_step_ = Clock::now();
  const double seconds = std::chrono::duration<double>(last_step_ - evaluation_began_).count();
  evaluation_ = {.what = "evaluation",
                 .iteration = done,
                 .total = total,
                 .seconds_per_iteration = done > 0 ? seconds / static_cast<double>(done) : 0.0};
}

void Progress::evaluated() {
  const std::lock_guard lock(mutex_);
  evaluation_.reset();
  last_step_ = last_line_ = Clock::now();
}

void Progress::logged() {
  const std::lock_guard lock(mutex_);
  last_line_ = Clock::now();
}

double Progress::seconds_per_iteration() const {
  const std::lock_guard lock(mutex_);
  return state_.seconds_per_iteration;
}

void Progress::run() {
  std::unique_lock lock(mutex_);
  do {
    const Clock::time_point now = Clock::now();
    ProgressState state = evaluation_.value_or(state_);
    state.seconds_since = std::chrono::duration<double>(now - last_step_).count();
    const bool silent = now - last_line_ >= output_.silence;
    if (silent) last_line_ = now;
    // Training must not wait for a slow terminal.
    lock.unlock();
    if (output_.bar) output_.bar(progress_bar(state));
    if (output_.line && silent) output_.line("progress: " + progress_text(state));
    lock.lock();
  } while (!ended_.wait_for(lock, output_.redraw, [this] { return end_; }));
  if (output_.bar) output_.bar("");
}

}  // namespace teratron
