#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/optimizer/optimizer_step_cuda.h"
#include "teratron/kernels/optimizer/split_float.h"

namespace teratron::cuda {
namespace {

__global__ void __launch_bounds__(256) join_kernel(HalvesArgs args) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < args.n) args.x[i] = join_bits({args.high[i], args.low[i]});
}

__global__ void __launch_bounds__(256) split_kernel(HalvesArgs args) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= args.n) return;
  const SplitFloat split = split_bits(args.x[i]);
  args.high[i] = split.high;
  args.low[i] = split.low;
}

}  // namespace

void join_halves(const HalvesArgs& args, CUstream_st* stream) {
  join_kernel<<<static_cast<unsigned>(ceil_div(args.n, 256)), 256, 0, stream>>>(args);
  check_launch("join_halves");
}

void split_into_halves(const HalvesArgs& args, CUstream_st* stream) {
  split_kernel<<<static_cast<unsigned>(ceil_div(args.n, 256)), 256, 0, stream>>>(args);
  check_launch("split_into_halves");
}

}  // namespace teratron::cuda
