// Reduce-scatter by copy engines: every rank copies its parts into the symmetric memory of the others, then
// each rank sums what it received. NCCL's reduce-scatter needs SMs for the transfer, so it cannot overlap a
// GEMM. Internal to nccl_communicator.
#pragma once

#include <functional>
#include <vector>

#include <c10/cuda/CUDAStream.h>

#include "teratron/comm/nccl/stream_barrier.h"

namespace teratron {

class CopyEngineReduceScatter {
 public:
  /// Collective. `memory` must be available.
  CopyEngineReduceScatter(SymmetricMemory& memory, int64_t rank, int64_t size);
  /// output [N] = sum or average over the ranks of part `rank` of input [size, N], rounded once; floating
  /// point. Runs on `stream`, which must be the same for all calls, as buffers are reused in its order.
  /// Pushes in pieces of push_window_bytes, through two windows in turn, which are kept.
  ncclResult_t reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                              const c10::cuda::CUDAStream& stream);
  /// reduce_scatter() of an input that is still to be computed. `produce_part` is called before a part is
  /// read; it computes it on the caller's current stream and makes `stream` wait for it. Receives into a
  /// window of the input's size, which is free again afterwards.
  ncclResult_t reduce_scatter_produced(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                       const c10::cuda::CUDAStream& stream,
                                       const std::function<void(int64_t part)>& produce_part);

 private:
  void push(const at::Tensor& received, const at::Tensor& part, int64_t peer, cudaStream_t stream);

  SymmetricMemory& memory_;
  StreamBarrier barrier_;
  int64_t rank_;
  int64_t size_;
  std::vector<at::Tensor> windows_;  // of bytes; made on demand
  int64_t pieces_ = 0;               // pushed so far
};

}  // namespace teratron
