#include "teratron/comm/broadcast_coalesced.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

constexpr int64_t kAlignment = 16;  // bytes, enough for every dtype

int64_t padded_bytes(const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

std::vector<at::Tensor> broadcast_coalesced(std::vector<at::Tensor> tensors, const Group& group) {
  if (group.size == 1 || tensors.empty()) return tensors;
  const at::NoGradGuard no_grad;
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) {
    TERATRON_ASSERT(tensor.device() == tensors[0].device());
    total += padded_bytes(tensor);
  }
  const at::Tensor buffer = at::zeros({total}, tensors[0].options().dtype(at::kByte).requires_grad(false));
  std::vector<at::Tensor> views;
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor bytes = buffer.narrow(0, offset, static_cast<int64_t>(tensor.nbytes()));
    views.push_back(bytes.view(tensor.scalar_type()).view(tensor.sizes()));
    if (group.rank == 0) views.back().copy_(tensor);
    offset += padded_bytes(tensor);
  }
  group.communicator->broadcast(buffer, 0).wait();
  return group.rank == 0 ? tensors : views;
}

}  // namespace teratron
