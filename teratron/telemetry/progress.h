// How far a training is: a bar on a terminal, a plain line now and then elsewhere.
//
// The last line of a terminal:
//   [########----------------]  34% 340/1000 | 412 ms/it | left 4m31s | next save 41s
// After 30 s without a log line:
//   progress:  34% 340/1000 | 412 ms/it | left 4m31s | next save 41s
// During an evaluation:
//   [########----------------] evaluation  34% 34/100 | 137 ms/it | left 9s
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "teratron/base/environment.h"

namespace teratron {

struct ProgressState {
  std::string_view what = "";  // empty: the training
  int64_t iteration = 0;
  int64_t total = 0;
  int64_t save_interval = 0;  // 0: no checkpoints
  double seconds_per_iteration = 0.0;
  double seconds_since = 0.0;  // since `iteration` was completed
};

/// "[####----]  34% 340/1000 | 412 ms/it | left 4m31s | next save 41s".
std::string progress_bar(const ProgressState& state);
/// Without the bar, for log files: " 34% 340/1000 | 412 ms/it | left 4m31s | next save 41s".
std::string progress_text(const ProgressState& state);

/// Where progress is shown. `bar` receives the current text of the bar a few times a second, and at the end
/// an empty one; `line` a line whenever nothing was logged for `silence`. Either may be null.
struct ProgressOutput {
  std::function<void(std::string_view)> bar = nullptr;
  std::function<void(std::string_view)> line = nullptr;
  std::chrono::milliseconds redraw{250};
  std::chrono::milliseconds silence{30'000};
};

/// A bar if stderr is a terminal of this process alone, or if `teratron launch` has one and draws it
/// (TERATRON_PROGRESS); else lines.
ProgressOutput progress_output(const Environment& environment);

/// Under `teratron launch` a rank prints its bar as a line that starts with this.
constexpr char progress_mark = '\r';

/// Shows the progress from construction to destruction, on another thread.
class Progress {
 public:
  Progress(const ProgressState& start, ProgressOutput output);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// After each step.
  void step(int64_t iteration, double seconds);
  /// Shows an evaluation in place of the steps, until evaluated().
  void evaluating(int64_t done, int64_t total);
  void evaluated();
  /// A log line was printed.
  void logged();
  /// Exponential moving average over about 20 steps. The first step (warm-up) is dropped after the second.
  double seconds_per_iteration() const;

 private:
  using Clock = std::chrono::steady_clock;
  void run();

  const ProgressOutput output_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  ProgressState state_;
  std::optional<ProgressState> evaluation_;
  Clock::time_point evaluation_began_;
  int64_t steps_ = 0;
  Clock::time_point last_step_;
  Clock::time_point last_line_;
  std::thread thread_;
};

}  // namespace teratron
