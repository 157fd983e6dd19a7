// Watches the NCCL communicators of one rank for timeouts and asynchronous errors. Internal to nccl_world.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "teratron/comm/nccl/nccl_communicator.h"

namespace teratron {

/// Two threads. The watchdog thread checks the communicators and fails the job; like any thread that calls
/// CUDA, it may block indefinitely. The monitor thread therefore never calls CUDA. It fails the job if the
/// watchdog thread is blocked; and if the job has failed and this rank has not stopped the watchdog soon
/// after, it calls `on_hang`, which ends the process.
class NcclWatchdog {
 public:
  NcclWatchdog(std::shared_ptr<ProcessBackend> backend, int gpu, std::function<void(const Fault&)> on_hang);

  void watch(std::shared_ptr<NcclCommunicator> communicator);
  /// Aborts all communicators.
  void close_all();
  /// Joins the threads, the monitor last.
  void stop();

 private:
  void run_watchdog(const std::stop_token& stop, int gpu);
  void run_monitor(const std::stop_token& stop);
  void check_async_errors() noexcept;
  void check_blocked_queries() noexcept;
  std::vector<std::shared_ptr<NcclCommunicator>> communicators();
  /// True if the thread must stop.
  bool sleep(const std::stop_token& stop, std::chrono::milliseconds time);

  std::shared_ptr<ProcessBackend> backend_;
  const std::function<void(const Fault&)> on_hang_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::vector<std::shared_ptr<NcclCommunicator>> communicators_;
  std::jthread monitor_, watchdog_;  // joined in reverse order
};

}  // namespace teratron
