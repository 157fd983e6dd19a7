// Progress of building an index that takes minutes, or of waiting for the process that does.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace teratron {

/// How far a build has come. Set by the builder, read by a reporter.
class IndexProgress {
 public:
  /// `step`: "samples"; `done` of `total` units.
  void set(const char* step, int64_t done, int64_t total) {
    step_ = step;
    done_ = done;
    total_ = total;
  }
  /// "samples, 40 %"; "" before the first set().
  std::string text() const;

 private:
  std::atomic<const char*> step_ = nullptr;
  std::atomic<int64_t> done_ = 0;
  std::atomic<int64_t> total_ = 0;
};

/// Calls `report` with the seconds since its start, first after `interval` and then after each `interval`,
/// until it is destroyed.
class PeriodicReport {
 public:
  PeriodicReport(std::chrono::milliseconds interval, std::function<void(int64_t seconds)> report);
  ~PeriodicReport();
  PeriodicReport(const PeriodicReport&) = delete;
  PeriodicReport& operator=(const PeriodicReport&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace teratron
