#include "teratron/comm/nccl_windows.h"

#include <thread>

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
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

NcclWindows::NcclWindows()
    : pool_(torch::cuda::CUDAPluggableAllocator::createCustomAllocator(allocate_segment, free_segment),
            /*is_user_created=*/true, /*use_on_oom=*/false, /*no_split=*/true) {}

at::Tensor NcclWindows::allocate(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const Allocating allocating(pool_);
  return at::empty(sizes, options);
}

at::Tensor NcclWindows::empty(at::IntArrayRef sizes, const at::TensorOptions& options,
                              ncclComm_t communicator) {
  at::Tensor tensor = allocate(sizes, options);
  size_t bytes = 0;
  void* const segment = allocator::getBaseAllocation(tensor.data_ptr(), &bytes);
  if (registered_.insert(segment).second) {
    ncclWindow_t window = nullptr;  // ends with the communicator
    check_nccl(ncclCommWindowRegister(communicator, segment, bytes, &window, NCCL_WIN_COLL_SYMMETRIC),
               communicator, "ncclCommWindowRegister");
  }
  return tensor;
}

}  // namespace teratron
