#include "teratron/comm/nccl/copy_engine_shift.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>

#include "teratron/base/error.h"

namespace teratron {

CopyEngineShift::CopyEngineShift(SymmetricMemory& memory, int64_t rank, int64_t size)
    : memory_(memory),
      barrier_(memory, rank, size),
      stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true)) {}

void CopyEngineShift::shift(const at::Tensor& received, const at::Tensor& sent, int64_t to) {
  TERATRON_ASSERT(received.is_contiguous() && sent.is_contiguous());
  barrier_.enter(stream_);  // all ranks can receive
  if (sent.numel() > 0) {
    std::byte* const place = memory_.peer_ptr(received, to);
    C10_CUDA_CHECK(
        cudaMemcpyAsync(place, sent.const_data_ptr(), sent.nbytes(), cudaMemcpyDeviceToDevice, stream_));
  }
  barrier_.enter(stream_);  // all blocks have arrived
}

}  // namespace teratron
