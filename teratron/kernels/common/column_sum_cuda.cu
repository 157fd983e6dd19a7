#include <algorithm>

#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/common/partials.cuh"
#include "teratron/kernels/pointwise/activation_cuda.h"

namespace teratron::cuda {
namespace {

constexpr int threads = 256, blocks_per_multiprocessor = 4;

/// A block sums its share of the rows of 32 column packs. Block (32, 8).
template <typename T, int N>
__global__ void __launch_bounds__(threads, blocks_per_multiprocessor) column_sum_kernel(ColumnSumArgs args) {
  using A = Accumulator<T>;
  __shared__ A shared[8][32][N];
  const int64_t column = (blockIdx.x * int64_t{32} + threadIdx.x) * N;
  const int64_t share = (args.rows + gridDim.y - 1) / gridDim.y, first = blockIdx.y * share;
  const int64_t end = min(args.rows, first + share);
  A sum[N] = {};
  if (column < args.width) {
#pragma unroll 8
    for (int64_t row = first + threadIdx.y; row < end; row += 8) {
      A x[N];
      widen(load<N>(static_cast<const T*>(args.x) + row * args.width + column), x);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += x[i];
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) shared[threadIdx.y][threadIdx.x][i] = sum[i];
  __syncthreads();
  // Thread (x, y) adds up columns y, y + 8, ... of pack x.
  for (int i = threadIdx.y; i < N; i += 8) {
    if (column + i >= args.width) continue;
    A total = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) total += shared[k][threadIdx.x][i];
    static_cast<A*>(args.sum.partial)[blockIdx.y * args.width + column + i] = total;
  }
}

template <typename T, int N>
void launch(const ColumnSumArgs& args, cudaStream_t stream) {
  const int64_t partials = column_sum_partials(args.rows, args.width);
  const dim3 grid(static_cast<unsigned>(ceil_div(ceil_div(args.width, N), 32)),
                  static_cast<unsigned>(partials));
  column_sum_kernel<T, N><<<grid, dim3(32, 8), 0, stream>>>(args);
  check_launch("column_sum");
  add_partials<Accumulator<T>>({.sums = {args.sum}, .count = partials, .width = args.width}, stream);
}

}  // namespace

int64_t column_sum_partials(int64_t rows, int64_t width) {
  constexpr int64_t fewest_rows = 64;
  // As many blocks as run at once, of packs of eight columns.
  const int64_t down = int64_t{multiprocessors()} * blocks_per_multiprocessor / ceil_div(width, 8 * 32);
  return std::max<int64_t>(1, std::min(down, ceil_div(rows, fewest_rows)));
}

void column_sum(const ColumnSumArgs& args, CUstream_st* stream) {
  with_device_type(args.dtype, [&]<typename T>(T) {
    if (args.width % pack_size<T> == 0 && aligned(args.x)) {
      launch<T, pack_size<T>>(args, stream);
    } else {
      launch<T, 1>(args, stream);
    }
  });
}

}  // namespace teratron::cuda
