// Counters of the server, in the text format of Prometheus. Thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace teratron {

/// Cumulative counts of durations, as Prometheus' histograms.
class DurationHistogram {
 public:
  void add(double seconds);
  /// Lines NAME_bucket{le="..."}, NAME_sum and NAME_count.
  std::string lines(const std::string& name) const;

 private:
  static constexpr std::array<double, 14> bounds = {0.005, 0.01, 0.025, 0.05, 0.1,  0.25, 0.5,
                                                    1.0,   2.5,  5.0,   10.0, 30.0, 60.0, 300.0};
  std::array<int64_t, bounds.size()> counts_{};
  int64_t count_ = 0;
  double sum_ = 0.0;
};

/// What the engine's thread knows.
struct ServiceLoad {
  int64_t running = 0, waiting = 0;   // requests
  int64_t used_pages = 0, pages = 0;  // of the memory for the states of sequences
};

class Metrics {
 public:
  using Clock = std::chrono::steady_clock;

  /// An answered request, by path and status.
  void add_response(const std::string& path, int status);
  void add_prompt_tokens(int64_t tokens);
  void add_generated_tokens(int64_t tokens, Clock::time_point now = Clock::now());
  void add_first_token(double seconds);
  void add_request(double seconds);
  void set_load(const ServiceLoad& load);
  void add_connections(int64_t change);
  /// Seconds until a place is likely to be free: the mean duration of requests, within [1, 60].
  int retry_after() const;

  std::string prometheus(Clock::time_point now = Clock::now()) const;

 private:
  double tokens_per_second(Clock::time_point now) const;

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> responses_;
  int64_t prompt_tokens_ = 0, generated_tokens_ = 0, connections_ = 0, requests_ = 0;
  double request_seconds_ = 0.0;
  DurationHistogram first_token_, durations_;
  ServiceLoad load_;
  std::deque<std::pair<Clock::time_point, int64_t>> recent_;  // generated tokens of the last seconds
};

}  // namespace teratron
