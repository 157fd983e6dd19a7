// How far a long copy is: the last line of a terminal, and without one a notice every ten seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace teratron {

class ByteProgress {
 public:
  /// `what` begins the line: "converted".
  ByteProgress(std::string what, int64_t total);
  ~ByteProgress();
  ByteProgress(const ByteProgress&) = delete;
  ByteProgress& operator=(const ByteProgress&) = delete;

  /// Thread-safe.
  void add(int64_t bytes);

 private:
  using Clock = std::chrono::steady_clock;

  std::mutex mutex_;
  std::string what_;
  int64_t total_;
  int64_t done_ = 0;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;
};

}  // namespace teratron
