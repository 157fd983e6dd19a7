#include "teratron/comm/nccl/symmetric_pool.h"

#include <algorithm>
#include <bit>

namespace teratron {
namespace {

constexpr size_t kMinBytes = size_t{1} << 20;
constexpr size_t kLarge = size_t{1} << 28;  // above, rounding to a power of two would waste too much
constexpr size_t kPage = size_t{1} << 21;

}  // namespace

size_t SymmetricPool::round_size(size_t bytes) {
  if (bytes > kLarge) return (bytes + kPage - 1) / kPage * kPage;
  return std::max(kMinBytes, std::bit_ceil(bytes));
}

std::optional<size_t> SymmetricPool::allocate(size_t bytes, const void* stream) {
  const auto found = std::find_if(buffers_.begin(), buffers_.end(), [&](const Buffer& buffer) {
    return buffer.free && buffer.bytes == bytes && buffer.stream == stream;
  });
  if (found == buffers_.end()) return std::nullopt;
  found->free = false;
  return static_cast<size_t>(found - buffers_.begin());
}

size_t SymmetricPool::add(size_t bytes, const void* stream) {
  buffers_.push_back({.bytes = bytes, .stream = stream});
  return buffers_.size() - 1;
}

}  // namespace teratron
