// Watches the NCCL communicators of one rank for timeouts and asynchronous errors. Internal to nccl_world.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "teratron/comm/nccl/nccl_communicator.h"

namespace teratron {

/// Two threads. The watchdog thread checks the communicators and fails the job; like any thread that calls
/// CUDA, it may block indefinitely. The monitor thread therefore never calls CUDA: if the job has failed and
/// this rank has not stopped the watchdog soon after, it calls `on_hang`, which ends the process.
class NcclWatchdog {
 public:
  NcclWatchdog(std::shared_ptr<ProcessBackend> backend, int gpu, std::function<void(const Fault&)> on_hang);
  ~NcclWatchdog() { stop(); }

  void watch(std::shared_ptr<NcclCommunicator> communicator);
  /// Aborts all communicators.
  void close_all();
  /// Joins the threads, the monitor last.
  void stop();

 private:
  void run_watchdog(int gpu);
  void run_monitor();
  void check_async_errors() noexcept;
  std::vector<std::shared_ptr<NcclCommunicator>> communicators();
  bool wait_for(const bool& stopping, std::chrono::milliseconds time);
  void join(std::thread& thread, bool& stopping);

  std::shared_ptr<ProcessBackend> backend_;
  const std::function<void(const Fault&)> on_hang_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<NcclCommunicator>> communicators_;
  bool stop_watchdog_ = false, stop_monitor_ = false;
  std::thread watchdog_, monitor_;
};

}  // namespace teratron
