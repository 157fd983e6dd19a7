#include "teratron/nn/offload/host_pool.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/base/fault_point.h"
#include "teratron/device/available_memory.h"

namespace teratron {

namespace {

constexpr int64_t reserve_bytes = int64_t{1} << 30;  // that others may need

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / double(1U << 30);
}

// Outside of libtorch's allocator: on a CPU its tensors are the device's.
at::Tensor allocate_on_cpu(int64_t bytes) {
  auto* const memory = new std::byte[static_cast<size_t>(bytes)];  // pages are resident once written
  return at::from_blob(
      memory, {bytes}, [](void* data) { delete[] static_cast<std::byte*>(data); },
      at::TensorOptions(at::kByte));
}

}  // namespace

at::Tensor HostPool::allocate() const {
  try {
    fault_point("offload.allocate");
    const int64_t left = available_host_memory() - chunk_bytes;
    if (left < reserve_bytes) throw Fault(fmt::format("only {:.1f} GiB would be left", gib(left)));
    if (device_.is_cpu()) return allocate_on_cpu(chunk_bytes);
    return at::empty({chunk_bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  } catch (const std::exception& error) {
    throw Fault(
        fmt::format("no pinned host memory for offloaded activations, beyond {:.2f} GiB of this rank: "
                    "{}. Offload fewer layers (--cpu-offloading-num-layers)",
                    gib(allocated_ * chunk_bytes), error.what()),
        ExitCode::out_of_memory);
  }
}

at::Tensor HostPool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    free_.push_back(allocate());
    ++allocated_;
  }
  at::Tensor chunk = std::move(free_.back());
  free_.pop_back();
  return chunk;
}

void HostPool::give_back(at::Tensor chunk) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(chunk));
}

int64_t HostPool::bytes() const {
  const std::lock_guard lock(mutex_);
  return allocated_ * chunk_bytes;
}

HostBlock::HostBlock(std::shared_ptr<HostPool> pool, int64_t bytes) : pool_(std::move(pool)) {
  for (int64_t end = 0; end < bytes; end += HostPool::chunk_bytes) chunks_.push_back(pool_->take());
}

HostBlock::~HostBlock() {
  for (at::Tensor& chunk : chunks_) pool_->give_back(std::move(chunk));
}

std::vector<at::Tensor> HostBlock::pieces(int64_t begin, int64_t end) const {
  std::vector<at::Tensor> pieces;
  while (begin < end) {
    const int64_t chunk = begin / HostPool::chunk_bytes, first = chunk * HostPool::chunk_bytes;
    const int64_t last = std::min(end, first + HostPool::chunk_bytes);
    pieces.push_back(chunks_.at(static_cast<size_t>(chunk)).narrow(0, begin - first, last - begin));
    begin = last;
  }
  return pieces;
}

}  // namespace teratron
