#include "teratron/comm/nccl/copy_engine_shift.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>

#include "teratron/base/error.h"

namespace teratron {

CopyEngineShift::CopyEngineShift(SymmetricMemory& memory, int64_t rank, int64_t size)
    : memory_(memory),
      rank_(rank),
      size_(size),
      barrier_(memory, rank, size),
      stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true)) {}

void CopyEngineShift::shift(const std::vector<ShiftOp>& ops) {
  barrier_.wait_for_all(stream_);  // all ranks can receive
  for (const auto& [received, sent, distance] : ops) {
    TERATRON_ASSERT(received.is_contiguous() && sent.is_contiguous());
    TERATRON_ASSERT(sent.nbytes() <= received.storage().nbytes(), "a block of {} bytes, a window of {}",
                    sent.nbytes(), received.storage().nbytes());
    if (sent.numel() == 0) continue;
    std::byte* const place = memory_.peer_ptr(received, ((rank_ + distance) % size_ + size_) % size_);
    C10_CUDA_CHECK(
        cudaMemcpyAsync(place, sent.const_data_ptr(), sent.nbytes(), cudaMemcpyDeviceToDevice, stream_));
  }
  barrier_.wait_for_all(stream_);  // all blocks have arrived
}

}  // namespace teratron
