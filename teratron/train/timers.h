// Named wall-clock timers of one rank.
//
//   { const auto timed = timers.scope("forward-backward", 1); ... }
//
// A timer above the chosen level (--timing-log-level) costs nothing and appears nowhere. On a GPU the caller
// gives a `synchronize`, which runs before each reading, since kernels are asynchronous; without it, host
// time is measured.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/train/metrics.h"

namespace teratron {

class Timers {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Timers(int level, std::function<void()> synchronize = {});

  /// Adds the time until its destruction to the timer.
  class Scope {
   public:
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class Timers;
    Scope(Timers* timers, size_t index);
    Timers* timers_;  // null: this timer is above the level
    size_t index_;
    Clock::time_point start_;
  };
  [[nodiscard]] Scope scope(std::string_view name, int level = 0);

  /// Names in the order of their first use: the same on ranks that do the same things.
  std::vector<std::string> names() const;
  /// Milliseconds per iteration of each name since the last reset.
  std::vector<double> milliseconds(int64_t iterations) const;
  void reset();

 private:
  struct Entry {
    std::string name;
    double seconds = 0.0;
  };
  size_t index_of(std::string_view name);

  int level_;
  std::function<void()> synchronize_;
  std::vector<Entry> entries_;
};

/// Least and greatest of each timer over the ranks; `per_rank` holds one row of milliseconds per rank.
TimerMetrics reduce_timers(const std::vector<std::string>& names,
                           const std::vector<std::vector<double>>& per_rank);

}  // namespace teratron
