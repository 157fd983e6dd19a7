// f32 master weights from and to a bf16 weight and 16 low bits (split_master_weights.h); a thread per
// parameter.
// Bytes: 4 read and 4 written per parameter.
#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/optimizer/launchers.h"
#include "teratron/kernels/optimizer/split_master_weights.h"

namespace teratron::cuda {
namespace {

__global__ void __launch_bounds__(256) join_kernel(SplitWeightsArgs args) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < args.n) args.x[i] = join_master_weight({args.high[i], args.low[i]});
}

__global__ void __launch_bounds__(256) split_kernel(SplitWeightsArgs args) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= args.n) return;
  const SplitWeight split = split_master_weight(args.x[i]);
  args.high[i] = split.high;
  args.low[i] = split.low;
}

}  // namespace

void join_master_weights(const SplitWeightsArgs& args, CUstream_st* stream) {
  join_kernel<<<static_cast<unsigned>(ceil_div(args.n, 256)), 256, 0, stream>>>(args);
  check_launch("join_master_weights");
}

void split_master_weights(const SplitWeightsArgs& args, CUstream_st* stream) {
  split_kernel<<<static_cast<unsigned>(ceil_div(args.n, 256)), 256, 0, stream>>>(args);
  check_launch("split_master_weights");
}

}  // namespace teratron::cuda
