#include "teratron/comm/nccl/stream_barrier.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <fmt/format.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

constexpr int64_t kSignalBytes = 16;  // of which 4 are used

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

StreamBarrier::StreamBarrier(SymmetricMemory& memory, int64_t rank, int64_t size)
    : rank_(rank), signals_(memory.zeros({size, kSignalBytes}, at::device(at::kCUDA).dtype(at::kByte))) {
  for (int64_t peer = 0; peer < size; ++peer) peer_signals_.push_back(memory.peer_ptr(signals_[rank], peer));
}

void StreamBarrier::wait_for_all(cudaStream_t stream) {
  static const auto batch_mem_op = load_stream_batch_mem_op();
  barriers_ += 1;
  std::vector<CUstreamBatchMemOpParams> ops, waits;
  for (int64_t peer = 0; peer < std::ssize(peer_signals_); ++peer) {
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

}  // namespace teratron
