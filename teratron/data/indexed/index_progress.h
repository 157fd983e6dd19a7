// Progress of building an index that takes minutes, or of waiting for the process that does.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "teratron/comm/stopped.h"

namespace teratron {

/// How far a build has come. Set by the builder, read by a reporter.
class IndexProgress {
 public:
  IndexProgress() = default;
  explicit IndexProgress(std::stop_token stop) : stop_(std::move(stop)) {}

  /// `step`: "samples"; `done` of `total` units. Throws Stopped if the build is asked to stop.
  void set(const char* step, int64_t done, int64_t total) {
    throw_if_stopped(stop_);
    step_ = step;
    done_ = done;
    total_ = total;
  }
  /// "samples, 40 %"; "" before the first set().
  std::string text() const;

 private:
  std::stop_token stop_;
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
