#include "teratron/comm/nccl_windows.h"

#include <string>
#include <thread>

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <nccl_device/impl/core__types.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include "teratron/comm/nccl_channel.h"

namespace teratron {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// Null where there is no memory left, as the caching allocator expects it.
void* allocate_segment(size_t bytes, int, cudaStream_t) {
  void* segment = nullptr;
  return ncclMemAlloc(&segment, bytes) == ncclSuccess ? segment : nullptr;
}

void free_segment(void* segment, size_t, int, cudaStream_t) {
  ncclMemFree(segment);
}

// What this thread allocates while it lives comes from the pool.
class Allocating {
 public:
  explicit Allocating(at::cuda::MemPool& pool) : device_(pool.device()), pool_(pool.id()) {
    allocator::beginAllocateToPool(device_, pool_, [mine = std::this_thread::get_id()](cudaStream_t) {
      return std::this_thread::get_id() == mine;
    });
  }
  ~Allocating() {
    allocator::endAllocateToPool(device_, pool_);
    allocator::releasePool(device_, pool_);  // begin counted a user
  }
  Allocating(const Allocating&) = delete;
  Allocating& operator=(const Allocating&) = delete;

 private:
  c10::DeviceIndex device_;
  c10::MempoolId_t pool_;
};

}  // namespace

NcclWindows::NcclWindows(ncclComm_t communicator, Communicator& hosts)
    : communicator_(communicator),
      hosts_(hosts),
      pool_(torch::cuda::CUDAPluggableAllocator::createCustomAllocator(allocate_segment, free_segment),
            /*is_user_created=*/true, /*use_on_oom=*/false, /*no_split=*/true) {}

at::Tensor NcclWindows::allocate(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const Allocating allocating(pool_);
  return at::empty(sizes, options);
}

/// All ranks see each other's memory where each has its own number among those that do.
NcclWindows::Segment NcclWindows::make_window(void* segment, size_t bytes) {
  ncclWindow_t window = nullptr;  // ends with the communicator
  check_nccl(ncclCommWindowRegister(communicator_, segment, bytes, &window, NCCL_WIN_COLL_SYMMETRIC),
             communicator_, "ncclCommWindowRegister");
  ncclWindow_vidmem description{};
  if (window) C10_CUDA_CHECK(cudaMemcpy(&description, window, sizeof description, cudaMemcpyDeviceToHost));
  const int place = window ? description.lsaRank : -1;
  const std::vector<std::string> places = hosts_.all_gather_bytes(std::to_string(place));
  for (size_t rank = 0; rank < places.size(); ++rank) {
    if (places[rank] != std::to_string(rank)) return {};
  }
  return {reinterpret_cast<std::byte*>(description.lsaFlatBase), uint64_t{description.stride4G} << 32};
}

at::Tensor NcclWindows::empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  at::Tensor tensor = allocate(sizes, options);
  size_t bytes = 0;
  void* const segment = allocator::getBaseAllocation(tensor.data_ptr(), &bytes);
  if (!segments_.contains(segment)) segments_[segment] = make_window(segment, bytes);
  return tensor;
}

std::byte* NcclWindows::at_rank(const at::Tensor& tensor, int64_t rank) const {
  size_t bytes = 0;
  auto* const here = static_cast<std::byte*>(tensor.data_ptr());
  auto* const segment = static_cast<std::byte*>(allocator::getBaseAllocation(here, &bytes));
  const Segment& opened = segments_.at(segment);
  return opened.first_rank ? opened.first_rank + rank * opened.stride + (here - segment) : nullptr;
}

}  // namespace teratron
