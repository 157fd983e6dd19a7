#include "teratron/comm/nccl/nccl_windows.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/cuda/MemPool.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/accumulate.h>
#include <nccl_device/impl/core__types.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include "teratron/comm/nccl/nccl_channel.h"
#include "teratron/comm/nccl/symmetric_pool.h"

namespace teratron {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

constexpr size_t kFirst = size_t{1} << 20;  // bytes of the window that shows whether they are usable

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

// The layout of NCCL's description of a window is that of the headers, in libraries of the same version.
bool is_nccl_of_headers() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess && version / 100 == NCCL_VERSION_CODE / 100;
}

// What NCCL keeps on the GPU of a window that ranks share; of one that they do not share it keeps other things.
std::optional<ncclWindow_vidmem> description_of(ncclWindow_t window) {
  cudaPointerAttributes attributes{};
  if (!window || !is_nccl_of_headers()) return std::nullopt;
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

struct NcclWindows::Window {
  at::Tensor memory;                // bytes
  std::byte* first_rank = nullptr;  // where rank 0's lies
  uint64_t stride = 0;              // to that of the next rank
};

struct NcclWindows::Shelf {
  // Of libtorch's caching allocator, which counts what it gives and frees other memory where there is too little.
  at::cuda::MemPool pool{
      torch::cuda::CUDAPluggableAllocator::createCustomAllocator(allocate_segment, free_segment),
      /*is_user_created=*/true, /*use_on_oom=*/false, /*no_split=*/true};
  std::mutex mutex;
  NumberedBuffers numbers;
  std::vector<std::unique_ptr<Window>> windows;
};

NcclWindows::NcclWindows(ncclComm_t communicator, Communicator& hosts, Announce announce)
    : communicator_(communicator), hosts_(hosts), announce_(std::move(announce)) {
  const bool native = allocator::get()->name() == "native";
  const std::vector<std::string> all = hosts_.all_gather_bytes(native ? "native" : "other");
  usable_ = std::all_of(all.begin(), all.end(), [](const std::string& one) { return one == "native"; });
  if (!usable_) return;
  shelf_ = std::make_shared<Shelf>();
  announce_(kFirst, [this] { shelf_->windows.push_back(make_window(kFirst)); });
  usable_ = shelf_->windows.front()->first_rank != nullptr;
  shelf_->numbers.give_back(shelf_->numbers.add(kFirst, c10::cuda::getCurrentCUDAStream().stream()));
}

NcclWindows::~NcclWindows() = default;

// GPUs see each other's memory where each rank has its own number among those that do.
std::unique_ptr<NcclWindows::Window> NcclWindows::make_window(size_t bytes) {
  auto result = std::make_unique<Window>();
  {
    const Allocating allocating(shelf_->pool);
    result->memory = at::empty({static_cast<int64_t>(bytes)}, at::device(at::kCUDA).dtype(at::kByte));
  }
  size_t segment_bytes = 0;
  void* const segment = allocator::getBaseAllocation(result->memory.data_ptr(), &segment_bytes);
  TERATRON_ASSERT(segment == result->memory.data_ptr(), "a window within another");
  ncclWindow_t window = nullptr;  // ends with the communicator
  check_nccl(ncclCommWindowRegister(communicator_, segment, segment_bytes, &window, NCCL_WIN_COLL_SYMMETRIC),
             communicator_, "ncclCommWindowRegister");
  const std::optional<ncclWindow_vidmem> description = description_of(window);
  const std::string place = description ? std::to_string(description->lsaRank) : "none";
  const std::vector<std::string> places = hosts_.all_gather_bytes(place);
  for (size_t rank = 0; rank < places.size(); ++rank) {
    if (places[rank] != std::to_string(rank)) return result;
  }
  result->first_rank = reinterpret_cast<std::byte*>(description->lsaFlatBase);
  result->stride = uint64_t{description->stride4G} << 32;
  return result;
}

at::Tensor NcclWindows::empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const size_t wanted = c10::multiply_integers(sizes) * options.dtype().itemsize();
  const size_t bytes = NumberedBuffers::rounded(wanted);
  const void* const stream = c10::cuda::getCurrentCUDAStream().stream();
  std::unique_lock lock(shelf_->mutex);
  std::optional<size_t> number = shelf_->numbers.take(bytes, stream);
  if (!number) {
    lock.unlock();
    std::unique_ptr<Window> made;
    announce_(bytes, [&] { made = make_window(bytes); });
    TERATRON_ASSERT(made->first_rank, "a window that not all ranks reach");
    lock.lock();
    number = shelf_->numbers.add(bytes, stream);
    shelf_->windows.push_back(std::move(made));
  }
  const auto give_back = [shelf = shelf_, number = *number](void*) {
    const std::lock_guard guard(shelf->mutex);
    shelf->numbers.give_back(number);
  };
  return at::from_blob(shelf_->windows[*number]->memory.data_ptr(), sizes, give_back, options);
}

std::byte* NcclWindows::at_rank(const at::Tensor& tensor, int64_t rank) const {
  const auto* const here = static_cast<const std::byte*>(tensor.const_data_ptr());
  const std::lock_guard lock(shelf_->mutex);
  for (const auto& window : shelf_->windows) {
    const auto* const begin = static_cast<const std::byte*>(window->memory.const_data_ptr());
    if (here >= begin && here < begin + window->memory.nbytes())
      return window->first_rank + rank * window->stride + (here - begin);
  }
  TERATRON_ASSERT(false, "a tensor in no window");
}

}  // namespace teratron
