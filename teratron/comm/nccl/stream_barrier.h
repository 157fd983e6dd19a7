// A barrier of the streams of all ranks of a group, for copies into symmetric memory. It needs no kernel, and
// so no SM: each rank writes a number into the memory of the others and waits for theirs. Internal to
// nccl_communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "teratron/comm/nccl/symmetric_memory.h"

namespace teratron {

class StreamBarrier {
 public:
  /// Collective. `memory` must be available.
  StreamBarrier(SymmetricMemory& memory, int64_t rank, int64_t size);
  /// Makes `stream` wait until the streams of all ranks have reached this point. What follows sees what the
  /// ranks copied before. All calls must be on the same stream.
  void wait_for_all(cudaStream_t stream);

 private:
  int64_t rank_;
  at::Tensor signals_;  // [size, ..]: the last barrier that each rank has reached, written by that rank
  std::vector<std::byte*> peer_signals_;  // this rank's entry in each rank's signals_
  uint32_t barriers_ = 0;                 // modulo 2^32, as the waits compare
};

}  // namespace teratron
