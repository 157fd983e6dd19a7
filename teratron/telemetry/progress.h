// A progress bar on a terminal; prints nothing elsewhere, so that log files stay clean.
//
//   [#######-------------]  34% 340/1000 | 412 ms/it | left 4m31s | next save 41s
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace teratron {

struct ProgressState {
  int64_t iteration = 0;
  int64_t start_iteration = 0;  // at the start of this process
  int64_t total = 0;
  int64_t save_interval = 0;  // 0: no checkpoints
  double seconds_per_iteration = 0.0;
};

/// The bar without control characters, truncated to `width` columns.
std::string render_progress(const ProgressState& state, size_t width);

/// Draws on stderr if that is a terminal. Call clear() before printing a log line to stdout.
class ProgressBar {
 public:
  /// `enabled` overrides the terminal test.
  ProgressBar(const ProgressState& start, std::optional<bool> enabled = std::nullopt);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// After each step. Redraws at most ten times a second.
  void step(int64_t iteration, double seconds);
  void clear();
  bool enabled() const { return enabled_; }
  /// Exponential moving average over about 20 steps. The first step (warm-up) is dropped after the second.
  double seconds_per_iteration() const { return state_.seconds_per_iteration; }

 private:
  void draw();

  ProgressState state_;
  bool enabled_;
  bool drawn_ = false;
  int64_t steps_ = 0;
  std::chrono::steady_clock::time_point last_drawn_;
};

}  // namespace teratron
