// Memory that all ranks of an NCCL communicator open to each other, so that copy engines can fill it. Internal to
// nccl_communicator.
//
// NCCL's kernels need multiprocessors, and a matrix product takes all of them for as long as it runs: the two come one
// after the other, whatever their streams. Copy engines need none. NCCL (2.28) uses them for an all-gather on a
// communicator of policy "zero CTA", whose input and output lie in windows.
#pragma once

#include <set>

#include <ATen/core/Tensor.h>
#include <ATen/cuda/MemPool.h>
#include <nccl.h>

namespace teratron {

class NcclWindows {
 public:
  NcclWindows();
  /// A tensor in a window of the communicator. Ranks ask for the same sizes and let go of them in the same order, so
  /// that it lies at the same place of the same window on all of them. New windows are made by all ranks together.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options, ncclComm_t communicator);

 private:
  at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options);

  at::cuda::MemPool pool_;  // of libtorch's caching allocator: counted and reused as other memory is
  std::set<void*> registered_;
};

}  // namespace teratron
