// Pinned host memory for offloaded activations.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

namespace teratron {

/// Chunks of one size, allocated on demand and kept for reuse while the pool lives. Thread-safe.
class HostPool {
 public:
  static constexpr int64_t chunk_bytes = int64_t{32} << 20;  // a power of two: libtorch rounds up to one

  /// For copies from and to this device.
  explicit HostPool(at::Device device) : device_(device) {}
  /// uint8 [chunk_bytes]. Fault(out_of_memory) if that would use up nearly all memory of the host.
  at::Tensor take();
  void give_back(at::Tensor chunk);
  /// Allocated so far.
  int64_t bytes() const;

 private:
  at::Tensor allocate() const;

  at::Device device_;
  mutable std::mutex mutex_;
  std::vector<at::Tensor> free_;
  int64_t allocated_ = 0;  // chunks
};

/// Chunks of a pool as one range of bytes, which go back at the end: copies that are launched afterwards into
/// the same chunks must follow those of the block.
class HostBlock {
 public:
  HostBlock(std::shared_ptr<HostPool> pool, int64_t bytes);
  ~HostBlock();
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;

  /// Tensors that together are bytes [begin, end).
  std::vector<at::Tensor> pieces(int64_t begin, int64_t end) const;

 private:
  std::shared_ptr<HostPool> pool_;
  std::vector<at::Tensor> chunks_;
};

}  // namespace teratron
