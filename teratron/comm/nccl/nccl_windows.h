// Memory that all ranks of an NCCL communicator open to each other, so that copy engines can fill it. Internal to
// nccl_communicator.
//
// NCCL's kernels need multiprocessors, and a matrix product takes all of them for as long as it runs: the two come one
// after the other, whatever their streams. Copy engines need none. NCCL (2.28) uses them for an all-gather on a
// communicator of policy "zero CTA", whose input and output lie in windows.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nccl.h>

#include "teratron/comm/communicator.h"

namespace teratron {

class NcclWindows {
 public:
  /// Makes a window of so many bytes, which all ranks do together, by calling `make`; tells others meanwhile.
  using Announce = std::function<void(size_t bytes, const std::function<void()>& make)>;

  /// `hosts`: the same group, for messages between its hosts; must outlive this, as the communicator must. Collective.
  NcclWindows(ncclComm_t communicator, Communicator& hosts, Announce announce);
  ~NcclWindows();
  /// Whether the GPUs of all ranks reach each other's windows. The same on all ranks.
  bool usable() const { return usable_; }
  /// A tensor in a window, for the current stream. Ranks ask for the same sizes and let go of them in the same order, so
  /// that it is the same window on all of them.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options);
  /// Where that tensor begins in the memory of `rank`, as this GPU sees it.
  std::byte* at_rank(const at::Tensor& tensor, int64_t rank) const;

 private:
  struct Window;
  struct Shelf;
  std::unique_ptr<Window> make_window(size_t bytes);

  ncclComm_t communicator_;
  Communicator& hosts_;
  Announce announce_;
  std::shared_ptr<Shelf> shelf_;  // tensors may outlive this
  bool usable_ = true;
};

}  // namespace teratron
