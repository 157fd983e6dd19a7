#include "teratron/comm/nccl_push.h"

#include <optional>

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

constexpr int64_t kToken = 16;  // bytes, which keeps copies aligned

}  // namespace

NcclPush::NcclPush(NcclWindows& windows, ncclComm_t communicator, int64_t rank, int64_t size)
    : windows_(windows),
      communicator_(communicator),
      rank_(rank),
      size_(size),
      tokens_(windows.empty({size * kToken}, at::device(at::kCUDA).dtype(at::kByte))) {}

ncclResult_t NcclPush::meet(cudaStream_t stream) {
  auto* const tokens = static_cast<std::byte*>(tokens_.data_ptr());
  return ncclAllGather(tokens + rank_ * kToken, tokens, kToken, ncclUint8, communicator_, stream);
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
  if (const ncclResult_t result = meet(stream); result != ncclSuccess) return result;  // all have room
  for (int64_t distance = 1; distance < size_; ++distance) {
    const int64_t peer = (rank_ + distance) % size_;
    make_part(peer);
    C10_CUDA_CHECK(cudaMemcpyAsync(windows_.at_rank(got[rank_], peer), given[peer].const_data_ptr(),
                                   output.nbytes(), cudaMemcpyDeviceToDevice, stream));
  }
  make_part(rank_);
  if (const ncclResult_t result = meet(stream); result != ncclSuccess) return result;  // all has arrived
  on_stream.emplace(stream);
  got[rank_].copy_(given[rank_]);  // needs multiprocessors, as the sum does: not before
  at::Tensor sum = output.view(-1);
  op == ReduceOp::sum ? at::sum_out(sum, got, 0) : at::mean_out(sum, got, 0);
  return ncclSuccess;
}

}  // namespace teratron
