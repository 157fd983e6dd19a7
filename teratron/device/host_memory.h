// A large block of host memory that a thread prepares in the background. Its pages are made resident and
// pinned slab by slab: no call holds the driver for long, and no copy waits for page faults.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "teratron/device/copy_stream.h"

namespace teratron {

class HostMemory {
 public:
  static constexpr int64_t slab_bytes = 32 << 20;

  /// Starts to prepare `bytes`. `stream` pins it and must outlive it.
  HostMemory(int64_t bytes, CopyStream& stream);
  /// No copy may be running.
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  int64_t size() const { return bytes_; }
  std::byte* data() const { return data_; }
  /// Waits until the first `bytes` are prepared; Fault(out_of_memory) if that failed, or if it would use up
  /// nearly all memory of this machine or container.
  void wait_prepared(int64_t bytes);

 private:
  void prepare();
  void prepare_slab(int64_t begin);

  int64_t bytes_;
  CopyStream& stream_;
  std::byte* data_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t prepared_ = 0;
  std::atomic<bool> stop_ = false;
  std::string failure_;
  std::thread thread_;
};

}  // namespace teratron
