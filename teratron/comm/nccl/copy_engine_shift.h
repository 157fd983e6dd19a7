// Messages by copy engines: every rank copies a block into the symmetric memory of another one. NCCL's
// messages need SMs, for which they wait while attention or a GEMM occupies them. Internal to
// nccl_communicator.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include "teratron/comm/nccl/stream_barrier.h"

namespace teratron {

class CopyEngineShift {
 public:
  /// Collective. `memory` must be available.
  CopyEngineShift(SymmetricMemory& memory, int64_t rank, int64_t size);
  /// Communicator::shift(), to rank `to`, on stream().
  void shift(const at::Tensor& received, const at::Tensor& sent, int64_t to);
  /// Its own, so that a block does not wait for a collective of gradients.
  const c10::cuda::CUDAStream& stream() const { return stream_; }

 private:
  SymmetricMemory& memory_;
  StreamBarrier barrier_;
  c10::cuda::CUDAStream stream_;
};

}  // namespace teratron
