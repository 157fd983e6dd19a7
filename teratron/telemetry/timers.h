// Named wall-clock timers of one rank.
//
//   { const auto timed = timers.scope("forward-backward", 1); ... }
//
// Names are Megatron-LM's: "forward-backward", "optimizer"... A timer above --timing-log-level does nothing.
// On a GPU, `synchronize` is called before each reading, since kernels are asynchronous; without it, host
// time is measured.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/comm/ranks/host_group.h"
#include "teratron/telemetry/metrics.h"

namespace teratron {

using TimerReadings = std::vector<std::pair<std::string, double>>;

class Timers {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Timers(int level, std::function<void()> synchronize = {});

  /// Adds its lifetime to the timer.
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
  /// `timers` may be null.
  [[nodiscard]] static Scope scope(Timers* timers, std::string_view name, int level);

  /// Milliseconds per iteration since the last reset, in the order of first use.
  TimerReadings milliseconds(int64_t iterations) const;
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

/// Minimum and maximum of each timer over the ranks that have it, with every rank's reading if `per_rank`:
/// then what ranks hold meanwhile grows with their number. The last rank gets the result, others nothing.
/// Collective.
TimerMetrics reduce_timers(HostGroup& ranks, const TimerReadings& mine, bool per_rank);

}  // namespace teratron
