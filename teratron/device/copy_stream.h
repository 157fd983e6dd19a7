// Copies from the device to host memory beside its computation, on a stream of low priority.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <ATen/core/Tensor.h>

namespace teratron {

/// All copies of a stream end in order. On a CPU they are done when a call returns. Fault if the device
/// fails.
class CopyStream {
 public:
  CopyStream() = default;
  virtual ~CopyStream() = default;
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  /// Memory that copies go to must be pinned, each copy within one range. Any thread; takes some milliseconds
  /// per 32 MiB of resident memory.
  virtual void pin(std::span<std::byte> memory) = 0;
  virtual void unpin(std::span<std::byte> memory) = 0;

  /// Copies launched from now on wait for the work launched so far on the current stream.
  virtual void follow_current() = 0;
  /// Launches a copy of contiguous device memory, beside the current stream.
  virtual void copy(void* host, const void* device, size_t bytes) = 0;
  /// Launches the copy as part of the current stream's work.
  virtual void copy_in_current(void* host, const void* device, size_t bytes) = 0;

  /// Marks the end of all copies so far of copy(). Marks are numbered from 0 since the last reset().
  virtual void mark() = 0;
  virtual void reset() = 0;
  /// Waits for a mark that was set; any thread.
  virtual void wait(size_t mark) = 0;
  /// Work launched from now on on the current stream waits for the mark; the host does not.
  virtual void let_current_wait(size_t mark) = 0;
};

std::unique_ptr<CopyStream> make_copy_stream(at::Device device);

/// The part of make_copy_stream() that needs CUDA.
std::unique_ptr<CopyStream> make_gpu_copy_stream(at::Device device);

}  // namespace teratron
