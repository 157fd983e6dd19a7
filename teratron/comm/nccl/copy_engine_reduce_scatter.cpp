#include "teratron/comm/nccl/copy_engine_reduce_scatter.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "teratron/base/error.h"
#include "teratron/comm/nccl/push_windows.h"
#include "teratron/kernels/common/reduce.h"

namespace teratron {
namespace {

constexpr int64_t kPieceElements = 1024;  // pieces are multiples of it, and so aligned

}  // namespace

CopyEngineReduceScatter::CopyEngineReduceScatter(SymmetricMemory& memory, int64_t rank, int64_t size)
    : memory_(memory), barrier_(memory, rank, size), rank_(rank), size_(size) {}

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
  if (windows_.empty()) {
    for (int64_t i = 0; i < push_windows; ++i)
      windows_.push_back(memory_.empty({push_window_bytes}, at::device(at::kCUDA).dtype(at::kByte)));
    barrier_.wait_for_all(stream);  // all windows are free
  }
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
    barrier_.wait_for_all(stream);  // all parts have arrived
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
  barrier_.wait_for_all(stream);  // all receive buffers are free
  for (int64_t distance = 1; distance < size_; ++distance) {
    const int64_t peer = (rank_ + distance) % size_;
    produce_part(peer);
    push(received, parts[peer], peer, stream);
  }
  produce_part(rank_);
  barrier_.wait_for_all(stream);  // all parts have arrived
  on_stream.emplace(stream);
  std::vector<at::Tensor> inputs = received.unbind();
  inputs[rank_] = parts[rank_];
  sum_parts_(output, inputs, op == ReduceOp::avg);
  return ncclSuccess;
}

}  // namespace teratron
