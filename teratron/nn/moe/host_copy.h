// A small tensor on its way to the host, which may queue other work before it waits. Through pinned memory: a
// copy to other memory holds locks of CUDA while it waits for a GPU, which a watchdog then cannot query.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace teratron {

class HostCopy {
 public:
  /// Starts behind the work that is queued on the current stream.
  explicit HostCopy(const at::Tensor& x);
  /// On the CPU. Waits for the copy, not for what was queued after it.
  const at::Tensor& wait();

 private:
  at::Tensor x_;
  std::optional<c10::Event> end_;  // of a copy from a GPU
};

}  // namespace teratron
