// What one communicator has queued on the GPU. Internal to nccl_communicator.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include <c10/cuda/CUDAEvent.h>

#include "teratron/comm/ranks/flight_recorder.h"

namespace teratron {

struct PendingWork {
  CollectiveFingerprint fingerprint;
  std::optional<int64_t> sequence = {};  // nullopt: not recorded
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  std::shared_ptr<c10::cuda::CUDAEvent> done = nullptr;  // null while NCCL is being called
};

/// Work that the GPU has not completed, oldest first. Thread-safe: the watchdog reads what other threads add.
class PendingQueue {
 public:
  /// The reference is valid until the work has completed or clear() is called.
  PendingWork& add(PendingWork work);
  void set_done(PendingWork& work, std::shared_ptr<c10::cuda::CUDAEvent> done);
  /// The oldest work, which may have completed. Does not call CUDA.
  std::optional<PendingWork> front();
  /// The oldest work that has not completed. Queries events, which may block while another thread is in a
  /// CUDA call.
  std::optional<PendingWork> oldest_incomplete();
  /// When the query began that oldest_incomplete() is in now; nullopt: it is in none.
  std::optional<std::chrono::steady_clock::time_point> query_since() const;
  void clear();

 private:
  bool has_completed(const PendingWork& work);

  std::mutex mutex_;  // never held for long
  std::deque<PendingWork> works_;
  std::atomic<std::chrono::steady_clock::time_point> query_since_ = std::chrono::steady_clock::time_point();
};

}  // namespace teratron
