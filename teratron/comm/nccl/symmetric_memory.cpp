#include "teratron/comm/nccl/symmetric_memory.h"

#include <mutex>
#include <optional>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/cuda/MemPool.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/accumulate.h>
#include <nccl_device/impl/core__types.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include "teratron/comm/consensus.h"
#include "teratron/comm/nccl/nccl_comm.h"
#include "teratron/comm/nccl/symmetric_pool.h"

namespace teratron {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

constexpr size_t kProbeBytes = size_t{1} << 20;  // of the window that tests availability

// Returns null if out of memory, as the caching allocator expects.
void* allocate_segment(size_t bytes, int, cudaStream_t) {
  void* segment = nullptr;
  return ncclMemAlloc(&segment, bytes) == ncclSuccess ? segment : nullptr;
}

void free_segment(void* segment, size_t, int, cudaStream_t) {
  ncclMemFree(segment);
}

// Allocations of this thread come from the pool.
class PoolScope {
 public:
  explicit PoolScope(at::cuda::MemPool& pool) : device_(pool.device()), pool_(pool.id()) {
    allocator::beginAllocateToPool(device_, pool_, [mine = std::this_thread::get_id()](cudaStream_t) {
      return std::this_thread::get_id() == mine;
    });
  }
  ~PoolScope() {
    allocator::endAllocateToPool(device_, pool_);
    allocator::releasePool(device_, pool_);  // beginAllocateToPool counted a user
  }
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  c10::DeviceIndex device_;
  c10::MempoolId_t pool_;
};

// ncclWindow_vidmem's layout matches the headers only in the same version of the library.
bool nccl_matches_headers() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess && version / 100 == NCCL_VERSION_CODE / 100;
}

// NCCL keeps this description of a window in GPU memory if ranks share it.
std::optional<ncclWindow_vidmem> read_window(ncclWindow_t window) {
  cudaPointerAttributes attributes{};
  if (!window || !nccl_matches_headers()) return std::nullopt;
  const bool known = cudaPointerGetAttributes(&attributes, window) == cudaSuccess;
  if (!known || attributes.type != cudaMemoryTypeDevice) {
    static_cast<void>(cudaGetLastError());
    return std::nullopt;
  }
  ncclWindow_vidmem description{};
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  C10_CUDA_CHECK(cudaMemcpyAsync(&description, window, sizeof description, cudaMemcpyDeviceToHost, stream));
  stream.synchronize();
  return description;
}

}  // namespace

struct SymmetricMemory::Window {
  at::Tensor memory;                // bytes
  std::byte* first_rank = nullptr;  // address of rank 0's memory; null if not accessible
  uint64_t stride = 0;              // to the next rank's
};

struct SymmetricMemory::State {
  // A pool of libtorch's caching allocator: memory statistics include windows, and cached memory is freed for
  // them.
  at::cuda::MemPool pool{
      torch::cuda::CUDAPluggableAllocator::createCustomAllocator(allocate_segment, free_segment),
      /*is_user_created=*/true, /*use_on_oom=*/false, /*no_split=*/true};
  std::mutex mutex;
  SymmetricPool buffers;
  std::vector<std::unique_ptr<Window>> windows;
};

SymmetricMemory::SymmetricMemory(ncclComm_t comm, Communicator& hosts, OnRegister on_register)
    : comm_(comm), hosts_(hosts), on_register_(std::move(on_register)) {
  available_ = all_true(hosts_, allocator::get()->name() == "native");
  if (!available_) return;
  state_ = std::make_shared<State>();
  on_register_(kProbeBytes, [this] { state_->windows.push_back(register_window(kProbeBytes)); });
  available_ = state_->windows.front()->first_rank != nullptr;
  state_->buffers.free(state_->buffers.add(kProbeBytes, c10::cuda::getCurrentCUDAStream().stream()));
}

SymmetricMemory::~SymmetricMemory() = default;

// All GPUs access each other's memory if every rank's lsaRank is its rank.
std::unique_ptr<SymmetricMemory::Window> SymmetricMemory::register_window(size_t bytes) {
  auto result = std::make_unique<Window>();
  {
    const PoolScope scope(state_->pool);
    result->memory = at::empty({static_cast<int64_t>(bytes)}, at::device(at::kCUDA).dtype(at::kByte));
  }
  size_t segment_bytes = 0;
  void* const segment = allocator::getBaseAllocation(result->memory.data_ptr(), &segment_bytes);
  TERATRON_ASSERT(segment == result->memory.data_ptr(), "the segment is part of another one");
  ncclWindow_t window = nullptr;  // freed with the communicator
  check_nccl(ncclCommWindowRegister(comm_, segment, segment_bytes, &window, NCCL_WIN_COLL_SYMMETRIC), comm_,
             "ncclCommWindowRegister");
  const std::optional<ncclWindow_vidmem> description = read_window(window);
  if (!all_true(hosts_, description && description->lsaRank == hosts_.rank())) return result;
  result->first_rank = reinterpret_cast<std::byte*>(description->lsaFlatBase);
  result->stride = uint64_t{description->stride4G} << 32;
  return result;
}

at::Tensor SymmetricMemory::empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const size_t bytes = SymmetricPool::round_size(c10::multiply_integers(sizes) * options.dtype().itemsize());
  const void* const stream = c10::cuda::getCurrentCUDAStream().stream();
  std::unique_lock lock(state_->mutex);
  std::optional<size_t> index = state_->buffers.allocate(bytes, stream);
  if (!index) {
    lock.unlock();
    std::unique_ptr<Window> window;
    on_register_(bytes, [&] { window = register_window(bytes); });
    TERATRON_ASSERT(window->first_rank, "not all ranks can access the window");
    lock.lock();
    index = state_->buffers.add(bytes, stream);
    state_->windows.push_back(std::move(window));
  }
  const auto release = [state = state_, index = *index](void*) {
    const std::lock_guard guard(state->mutex);
    state->buffers.free(index);
  };
  return at::from_blob(state_->windows[*index]->memory.data_ptr(), sizes, release, options);
}

at::Tensor SymmetricMemory::zeros(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const at::Tensor result = empty(sizes, options).zero_();
  c10::cuda::getCurrentCUDAStream().synchronize();
  hosts_.barrier();
  return result;
}

std::byte* SymmetricMemory::peer_ptr(const at::Tensor& tensor, int64_t rank) const {
  const auto* const here =  // also of a tensor without elements
      static_cast<const std::byte*>(tensor.storage().data()) + tensor.storage_offset() * tensor.itemsize();
  const std::lock_guard lock(state_->mutex);
  for (const auto& window : state_->windows) {
    const auto* const begin = static_cast<const std::byte*>(window->memory.const_data_ptr());
    if (here >= begin && here < begin + window->memory.nbytes())
      return window->first_rank + rank * window->stride + (here - begin);
  }
  TERATRON_ASSERT(false, "the tensor is not in symmetric memory");
}

}  // namespace teratron
