// Fills a strided tensor with scaled random numbers from Philox, keyed by the global index of an element.
// A thread takes four elements at a time, those of one Philox block, and loops with the grid's stride.
// Bytes: x is written once; the work is Philox.
#include <algorithm>

#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/pointwise/launchers.h"
#include "teratron/kernels/pointwise/random_value.h"

namespace teratron::cuda {
namespace {

/// Work item (line, quad): up to four elements of a line of x, from one Philox block.
template <typename T>
__global__ void __launch_bounds__(256)
    random_fill_kernel(RandomFillArgs args, int64_t quads_per_line, int64_t items) {
  const int64_t n = args.size[3];
  for (int64_t item = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; item < items;
       item += gridDim.x * int64_t{blockDim.x}) {
    const int64_t line = item / quads_per_line;
    const int64_t at[3] = {line / (args.size[1] * args.size[2]), line / args.size[2] % args.size[1],
                           line % args.size[2]};
    T* to = static_cast<T*>(args.x);
    uint64_t index = args.first;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      to += at[d] * args.stride[d];
      index += static_cast<uint64_t>(at[d] * args.global_stride[d]);
    }
    const uint64_t block = index / 4 + item % quads_per_line;
    const RandomQuad quad = random_block(args.key, block, args.uniform);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int64_t i = static_cast<int64_t>(block * 4 + k - index);
      if (i >= 0 && i < n) to[i * args.stride[3]] = round_to<T>(fmaf(args.scale, quad.value[k], args.offset));
    }
  }
}

}  // namespace

void random_fill(const RandomFillArgs& args, CUstream_st* stream) {
  const int64_t quads = args.size[3] / 4 + 2;  // a line may start and end inside a block
  const int64_t items = quads * args.size[0] * args.size[1] * args.size[2];
  const int64_t blocks = std::min(ceil_div(items, 256), int64_t{sm_count()} * 16);
  with_device_type(args.dtype, [&]<typename T>(T) {
    random_fill_kernel<T><<<static_cast<unsigned>(blocks), 256, 0, stream>>>(args, quads, items);
  });
  check_launch("random_fill");
}

}  // namespace teratron::cuda
