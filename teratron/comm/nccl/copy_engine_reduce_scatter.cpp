#include "teratron/comm/nccl/copy_engine_reduce_scatter.h"

#include <optional>

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda.h>
#include <cudaTypedefs.h>

#include "teratron/base/error.h"
#include "teratron/kernels/common/reduce.h"

namespace teratron {
namespace {

constexpr int64_t kToken = 16;  // bytes, of which 4 are used

// The driver's function, which libraries find at run time.
PFN_cuStreamBatchMemOp_v11070 stream_memory_operations() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  C10_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &function, 11070, cudaEnableDefault, &found));
  TERATRON_ASSERT(function, "a driver without cuStreamBatchMemOp");
  return reinterpret_cast<PFN_cuStreamBatchMemOp_v11070>(function);
}

CUstreamBatchMemOpParams write(std::byte* place, uint32_t value) {
  CUstreamBatchMemOpParams result{};
  result.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  result.writeValue.address = reinterpret_cast<CUdeviceptr>(place);
  result.writeValue.value = value;
  result.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // all that came before is visible first
  return result;
}

CUstreamBatchMemOpParams wait_until(std::byte* place, uint32_t value) {
  CUstreamBatchMemOpParams result{};
  result.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  result.waitValue.address = reinterpret_cast<CUdeviceptr>(place);
  result.waitValue.value = value;
  result.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;  // modulo 2^32
  return result;
}

}  // namespace

NcclPush::NcclPush(NcclWindows& windows, ncclComm_t communicator, int64_t rank, int64_t size)
    : windows_(windows),
      communicator_(communicator),
      rank_(rank),
      size_(size),
      tokens_(windows.empty({size, kToken}, at::device(at::kCUDA).dtype(at::kByte))) {
  for (int64_t peer = 0; peer < size; ++peer) tells_.push_back(windows.at_rank(tokens_[rank], peer));
}

/// Nobody tells this rank anything before its tokens are zero.
ncclResult_t NcclPush::start(cudaStream_t stream) {
  C10_CUDA_CHECK(cudaMemsetAsync(tokens_.data_ptr(), 0, tokens_.nbytes(), stream));
  std::byte* const spare = static_cast<std::byte*>(tokens_.data_ptr()) + sizeof(uint32_t);
  return ncclAllReduce(spare, spare, 1, ncclUint8, ncclMax, communicator_, stream);
}

/// The stream goes on when those of all ranks have come here. By memory operations of streams, which wait without a kernel.
void NcclPush::meet(cudaStream_t stream) {
  static const auto issue = stream_memory_operations();
  meetings_ += 1;
  std::vector<CUstreamBatchMemOpParams> tell, wait;
  for (int64_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    tell.push_back(write(tells_[peer], meetings_));
    wait.push_back(wait_until(static_cast<std::byte*>(tokens_.data_ptr()) + peer * kToken, meetings_));
  }
  tell.insert(tell.end(), wait.begin(), wait.end());
  const CUresult result = issue(stream, static_cast<unsigned>(tell.size()), tell.data(), 0);
  if (result != CUDA_SUCCESS) {
    throw Fault(fmt::format("cuStreamBatchMemOp: CUDA error {}", static_cast<int>(result)));
  }
}

ncclResult_t NcclPush::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                      const c10::cuda::CUDAStream& stream,
                                      const std::function<void(int64_t part)>& make_part) {
  TERATRON_ASSERT(op == ReduceOp::sum || op == ReduceOp::avg);
  const at::NoGradGuard no_grad;
  const at::Tensor given = input.view({size_, -1});
  std::optional<c10::cuda::CUDAStreamGuard> on_stream(stream);
  const at::Tensor got = windows_.empty(given.sizes(), given.options().requires_grad(false));
  on_stream.reset();
  if (!started_) {
    if (const ncclResult_t result = start(stream); result != ncclSuccess) return result;
    started_ = true;
  }
  meet(stream);  // all have room
  for (int64_t distance = 1; distance < size_; ++distance) {
    const int64_t peer = (rank_ + distance) % size_;
    make_part(peer);
    C10_CUDA_CHECK(cudaMemcpyAsync(windows_.at_rank(got[rank_], peer), given[peer].const_data_ptr(),
                                   output.nbytes(), cudaMemcpyDeviceToDevice, stream));
  }
  make_part(rank_);
  meet(stream);  // all has arrived
  on_stream.emplace(stream);
  std::vector<at::Tensor> parts = got.unbind();
  parts[rank_] = given[rank_];
  sum_parts_(output, parts, op == ReduceOp::avg);
  return ncclSuccess;
}

}  // namespace teratron
