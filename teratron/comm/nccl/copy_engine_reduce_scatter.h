// Reduce-scatter by copy engines: every rank pushes its parts into windows of the others, then each adds up what it has
// got. NCCL's own needs multiprocessors while parts travel, and so would not run beside a matrix product. Internal to
// nccl_communicator.
#pragma once

#include <functional>
#include <vector>

#include <c10/cuda/CUDAStream.h>

#include "teratron/comm/nccl/nccl_windows.h"

namespace teratron {

class NcclPush {
 public:
  /// `windows` are usable.
  NcclPush(NcclWindows& windows, ncclComm_t communicator, int64_t rank, int64_t size);
  /// output [N] = the sum or average over the ranks of part `rank` of input [size, N], rounded once; floating point. On
  /// `stream`, which all calls share: what it allocates is reused in its order. `make_part` is called before a part is
  /// read, on the caller's current stream, and makes `stream` wait for it.
  ncclResult_t reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                              const c10::cuda::CUDAStream& stream,
                              const std::function<void(int64_t part)>& make_part);

 private:
  ncclResult_t start(cudaStream_t stream);
  void meet(cudaStream_t stream);

  NcclWindows& windows_;
  ncclComm_t communicator_;
  int64_t rank_;
  int64_t size_;
  at::Tensor
      tokens_;  // [size, ..]: how often each rank has come to a meeting, as far as it has told this one
  std::vector<std::byte*> tells_;  // where each rank keeps what this one tells it
  uint32_t meetings_ = 0;          // modulo 2^32, as the waits compare
  bool started_ = false;
};

}  // namespace teratron
