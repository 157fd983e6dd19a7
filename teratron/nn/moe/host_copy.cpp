#include "teratron/nn/moe/host_copy.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace teratron {

HostCopy::HostCopy(const at::Tensor& x) : x_(x) {
  if (x.is_cpu()) return;
  x_ = at::empty(x.sizes(), x.options().device(at::kCPU).pinned_memory(true));
  x_.copy_(x, /*non_blocking=*/true);
  end_.emplace(x.device().type());
  end_->record(c10::impl::VirtualGuardImpl(x.device().type()).getStream(x.device()));
}

const at::Tensor& HostCopy::wait() {
  if (end_) end_->synchronize();
  return x_;
}

}  // namespace teratron
