// A large block of host memory that a thread prepares in the background: its pages are made resident and
// pinned slab by slab, so that no call holds the driver for long and no copy waits for page faults.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "teratron/train/device/copy_stream.h"

namespace teratron {

class HostMemory {
 public:
  static constexpr int64_t slab_bytes = 32 << 20;

  /// Starts to prepare `bytes`. `stream` pins it and must outlive it. Fault(out_of_memory) if there is no
  /// address space.
  HostMemory(int64_t bytes, CopyStream& stream);
  /// No copy may be running.
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  int64_t size() const { return bytes_; }
  std::byte* data() const { return data_; }
  /// Waits until the first `bytes` are prepared; Fault if that failed.
  void wait_prepared(int64_t bytes);

 private:
  void prepare();

  int64_t bytes_;
  CopyStream& stream_;
  std::byte* data_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t prepared_ = 0;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace teratron
