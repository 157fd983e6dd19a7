#include "teratron/comm/nccl/copy_engine_reduce_scatter.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda.h>
#include <cudaTypedefs.h>

#include "teratron/base/error.h"
#include "teratron/comm/nccl/push_windows.h"
#include "teratron/kernels/common/reduce.h"

namespace teratron {
namespace {

constexpr int64_t kSignalBytes = 16;      // of which 4 are used
constexpr int64_t kPieceElements = 1024;  // pieces are multiples of it, and so aligned

// A driver function, looked up at run time.
PFN_cuStreamBatchMemOp_v11070 load_stream_batch_mem_op() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  C10_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &function, 11070, cudaEnableDefault, &found));
  TERATRON_ASSERT(function, "the driver lacks cuStreamBatchMemOp");
  return reinterpret_cast<PFN_cuStreamBatchMemOp_v11070>(function);
}

CUstreamBatchMemOpParams write_value(std::byte* address, uint32_t value) {
  CUstreamBatchMemOpParams result{};
  result.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  result.writeValue.address = reinterpret_cast<CUdeviceptr>(address);
  result.writeValue.value = value;
  result.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // after a memory fence
  return result;
}

CUstreamBatchMemOpParams wait_value(std::byte* address, uint32_t value) {
  CUstreamBatchMemOpParams result{};
  result.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  result.waitValue.address = reinterpret_cast<CUdeviceptr>(address);
  result.waitValue.value = value;
  result.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;  // modulo 2^32
  return result;
}

}  // namespace

CopyEngineReduceScatter::CopyEngineReduceScatter(SymmetricMemory& memory, ncclComm_t comm, int64_t rank,
                                                 int64_t size)
    : memory_(memory),
      comm_(comm),
      rank_(rank),
      size_(size),
      signals_(memory.empty({size, kSignalBytes}, at::device(at::kCUDA).dtype(at::kByte))) {
  for (int64_t peer = 0; peer < size; ++peer) peer_signals_.push_back(memory.peer_ptr(signals_[rank], peer));
}

/// Zeroes the signals, once. The all-reduce is a barrier: peers must not write signals before.
ncclResult_t CopyEngineReduceScatter::start(cudaStream_t stream) {
  if (std::exchange(started_, true)) return ncclSuccess;
  C10_CUDA_CHECK(cudaMemsetAsync(signals_.data_ptr(), 0, signals_.nbytes(), stream));
  std::byte* const spare = static_cast<std::byte*>(signals_.data_ptr()) + sizeof(uint32_t);
  return ncclAllReduce(spare, spare, 1, ncclUint8, ncclMax, comm_, stream);
}

/// Makes `stream` wait until those of all ranks have reached this point. Stream memory operations need no
/// kernel.
void CopyEngineReduceScatter::barrier(cudaStream_t stream) {
  static const auto batch_mem_op = load_stream_batch_mem_op();
  barriers_ += 1;
  std::vector<CUstreamBatchMemOpParams> ops, waits;
  for (int64_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    ops.push_back(write_value(peer_signals_[peer], barriers_));
    waits.push_back(
        wait_value(static_cast<std::byte*>(signals_.data_ptr()) + peer * kSignalBytes, barriers_));
  }
  ops.insert(ops.end(), waits.begin(), waits.end());
  const CUresult result = batch_mem_op(stream, static_cast<unsigned>(ops.size()), ops.data(), 0);
  if (result != CUDA_SUCCESS) {
    throw Fault(fmt::format("cuStreamBatchMemOp: CUDA error {}", static_cast<int>(result)));
  }
}

void CopyEngineReduceScatter::push(const at::Tensor& received, const at::Tensor& part, int64_t peer,
                                   cudaStream_t stream) {
  C10_CUDA_CHECK(cudaMemcpyAsync(memory_.peer_ptr(received[rank_], peer), part.const_data_ptr(),
                                 part.nbytes(), cudaMemcpyDeviceToDevice, stream));
}

/// One barrier a piece suffices: a rank that has reached that of piece k has summed piece k - 1, so all may
/// push piece k + 1 into the same window.
ncclResult_t CopyEngineReduceScatter::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                                     ReduceOp op, const c10::cuda::CUDAStream& stream) {
  TERATRON_ASSERT(op == ReduceOp::sum || op == ReduceOp::avg);
  const at::NoGradGuard no_grad;
  const at::Tensor parts = input.view({size_, -1});
  const c10::cuda::CUDAStreamGuard on_stream(stream);
  if (const ncclResult_t result = start(stream); result != ncclSuccess) return result;
  while (std::ssize(windows_) < push_windows)
    windows_.push_back(memory_.empty({push_window_bytes}, at::device(at::kCUDA).dtype(at::kByte)));
  const int64_t most = push_window_bytes / (size_ * output.element_size()) / kPieceElements * kPieceElements;
  for (int64_t begin = 0; begin < output.numel(); begin += most, ++pieces_) {
    const int64_t length = std::min(most, output.numel() - begin);
    const at::Tensor received = windows_[pieces_ % push_windows]
                                    .narrow(0, 0, size_ * length * output.element_size())
                                    .view(output.scalar_type())
                                    .view({size_, length});
    const at::Tensor piece = parts.narrow(1, begin, length);
    for (int64_t distance = 1; distance < size_; ++distance) {
      const int64_t peer = (rank_ + distance) % size_;
      push(received, piece[peer], peer, stream);
    }
    barrier(stream);  // all parts have arrived
    std::vector<at::Tensor> inputs = received.unbind();
    inputs[rank_] = piece[rank_];
    sum_parts_(output.view(-1).narrow(0, begin, length), inputs, op == ReduceOp::avg);
  }
  return ncclSuccess;
}

ncclResult_t CopyEngineReduceScatter::reduce_scatter_produced(
    const at::Tensor& output, const at::Tensor& input, ReduceOp op, const c10::cuda::CUDAStream& stream,
    const std::function<void(int64_t part)>& produce_part) {
  TERATRON_ASSERT(op == ReduceOp::sum || op == ReduceOp::avg);
  const at::NoGradGuard no_grad;
  const at::Tensor parts = input.view({size_, -1});
  std::optional<c10::cuda::CUDAStreamGuard> on_stream(stream);
  const at::Tensor received = memory_.empty(parts.sizes(), parts.options().requires_grad(false));
  on_stream.reset();
  if (const ncclResult_t result = start(stream); result != ncclSuccess) return result;
  barrier(stream);  // all receive buffers are free
  for (int64_t distance = 1; distance < size_; ++distance) {
    const int64_t peer = (rank_ + distance) % size_;
    produce_part(peer);
    push(received, parts[peer], peer, stream);
  }
  produce_part(rank_);
  barrier(stream);  // all parts have arrived
  on_stream.emplace(stream);
  std::vector<at::Tensor> inputs = received.unbind();
  inputs[rank_] = parts[rank_];
  sum_parts_(output, inputs, op == ReduceOp::avg);
  return ncclSuccess;
}

}  // namespace teratron
