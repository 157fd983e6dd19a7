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
  /// Communicator::shift(), on stream().
  void shift(const std::vector<ShiftOp>& ops);
  /// Its own, so that a block does not wait for a collective of gradients.
  const c10::cuda::CUDAStream& stream() const { return stream_; }

 private:
  SymmetricMemory& memory_;
  int64_t rank_, size_;
  StreamBarrier barrier_;
  c10::cuda::CUDAStream stream_;
};

}  // namespace teratron
