// Symmetric memory: NCCL windows that the GPUs of all ranks of a communicator can access, so that copy
// engines can run collectives. Internal to nccl_communicator.
//
// NCCL's kernels need SMs, and a GEMM occupies all of them while it runs: the two serialize, whatever their
// streams. Copy engines need no SMs. NCCL (2.28) uses them for an all-gather on a communicator of policy
// "zero CTA" whose input and output are in windows.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nccl.h>

#include "teratron/comm/communicator.h"

namespace teratron {

class SymmetricMemory {
 public:
  /// Called for every new window: must call `register_window`, on all ranks in the same order.
  using OnRegister = std::function<void(size_t bytes, const std::function<void()>& register_window)>;

  /// Collective. `hosts` is the same group, for messages between hosts. Both must outlive this object.
  SymmetricMemory(ncclComm_t comm, Communicator& hosts, OnRegister on_register);
  ~SymmetricMemory();
  /// Whether all GPUs can access each other's windows. The same on all ranks.
  bool available() const { return available_; }
  /// A tensor in a window, for the current stream. Ranks must allocate the same sizes, and free them, in the
  /// same order, so that all of them get the same window.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options);
  /// A tensor as from empty(). Collective: when it returns, all ranks' tensors are zero.
  at::Tensor zeros(at::IntArrayRef sizes, const at::TensorOptions& options);
  /// Address of the corresponding tensor of `rank`, as mapped on this GPU.
  std::byte* peer_ptr(const at::Tensor& tensor, int64_t rank) const;

 private:
  struct Window;
  struct State;
  std::unique_ptr<Window> register_window(size_t bytes);

  ncclComm_t comm_;
  Communicator& hosts_;
  OnRegister on_register_;
  std::shared_ptr<State> state_;  // shared with tensors, which may outlive this object
  bool available_ = true;
};

}  // namespace teratron
