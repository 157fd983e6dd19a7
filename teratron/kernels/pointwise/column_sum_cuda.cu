// Sum over rows, y[c] = sum_r x[r, c], in two kernels.
// Block (32, 8) in one wave: a warp has 32 neighbouring packs of 16 bytes, the eight warps take rows in
// turn and are added in shared memory; a block writes one workspace row, and a second kernel adds these up.
// Bytes: x is read once. One H200: 0.78 of a copy (16384 x 8192).
#include <algorithm>

#include "teratron/kernels/common/column_reduction.cuh"
#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/pointwise/launchers.h"

namespace teratron::cuda {
namespace {

constexpr int threads = 256, blocks_per_sm = 4;

/// A block sums its share of rows over 32 column packs. Block (32, 8).
template <typename T, int N>
__global__ void __launch_bounds__(threads, blocks_per_sm) column_sum_kernel(ColumnSumArgs args) {
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
    static_cast<A*>(args.sum.workspace)[blockIdx.y * args.width + column + i] = total;
  }
}

template <typename T, int N>
void launch(const ColumnSumArgs& args, cudaStream_t stream) {
  const int64_t workspace_rows = column_sum_workspace_rows(args.rows, args.width);
  const dim3 grid(static_cast<unsigned>(ceil_div(ceil_div(args.width, N), 32)),
                  static_cast<unsigned>(workspace_rows));
  column_sum_kernel<T, N><<<grid, dim3(32, 8), 0, stream>>>(args);
  check_launch("column_sum");
  finalize_column_sums<Accumulator<T>>({.sums = {args.sum}, .rows = workspace_rows, .width = args.width},
                                       stream);
}

}  // namespace

int64_t column_sum_workspace_rows(int64_t rows, int64_t width) {
  constexpr int64_t min_rows = 64;
  // One wave of blocks, for packs of eight columns.
  const int64_t one_wave = int64_t{sm_count()} * blocks_per_sm / ceil_div(width, 8 * 32);
  return std::max<int64_t>(1, std::min(one_wave, ceil_div(rows, min_rows)));
}

void column_sum(const ColumnSumArgs& args, CUstream_st* stream) {
  with_pack(args.dtype, args.width, aligned(args.x),
            [&]<typename T>(T, auto pack) { launch<T, pack.value>(args, stream); });
}

}  // namespace teratron::cuda
