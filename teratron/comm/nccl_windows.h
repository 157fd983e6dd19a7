// Memory that all ranks of an NCCL communicator open to each other, so that copy engines can fill it. Internal to
// nccl_communicator.
//
// NCCL's kernels need multiprocessors, and a matrix product takes all of them for as long as it runs: the two come one
// after the other, whatever their streams. Copy engines need none. NCCL (2.28) uses them for an all-gather on a
// communicator of policy "zero CTA", whose input and output lie in windows.
#pragma once

#include <map>

#include <ATen/core/Tensor.h>
#include <ATen/cuda/MemPool.h>
#include <nccl.h>

#include "teratron/comm/communicator.h"

namespace teratron {

class NcclWindows {
 public:
  /// `hosts`: the same group, for messages between its hosts; must outlive this.
  NcclWindows(ncclComm_t communicator, Communicator& hosts);
  /// A tensor in a window, of the current stream. Ranks ask for the same sizes and let go of them in the same order, so
  /// that it lies at the same place of the same window on all of them. New windows are made by all ranks together.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options);
  /// Where that tensor begins in the memory of `rank`, as this GPU sees it; null where it does not.
  std::byte* at_rank(const at::Tensor& tensor, int64_t rank) const;

 private:
  struct Segment {
    std::byte* first_rank = nullptr;  // where rank 0's lies; null: out of reach
    uint64_t stride = 0;              // to that of the next rank
  };
  Segment make_window(void* segment, size_t bytes);
  at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options);

  ncclComm_t communicator_;
  Communicator& hosts_;
  at::cuda::MemPool pool_;  // of libtorch's caching allocator: counted and reused as other memory is
  std::map<void*, Segment> segments_;
};

}  // namespace teratron
