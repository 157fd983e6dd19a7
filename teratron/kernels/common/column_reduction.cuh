// Second stage of column sums: adds up the blocks' partial sums in fixed order.
#pragma once

#include <iterator>

#include "teratron/kernels/common/column_reduction.h"
#include "teratron/kernels/common/device.cuh"

namespace teratron::cuda {

struct ColumnReductions {
  ColumnReduction sums[3];  // used from the front
  int64_t rows, width;      // of the workspaces
};

/// out[c] (+)= sum over r < rows of workspace[r * width + c], for up to three sums (blockIdx.y).
/// Block (32, 32).
template <typename A>
__global__ void __launch_bounds__(1024) finalize_column_sums_kernel(ColumnReductions p) {
  __shared__ A shared[32][33];
  const ColumnReduction& reduction = p.sums[blockIdx.y];
  const A* const workspace = static_cast<const A*>(reduction.workspace);
  A* const out = static_cast<A*>(reduction.out);
  const int64_t column = blockIdx.x * int64_t{32} + threadIdx.x;
  A sum = 0;
  if (column < p.width) {
#pragma unroll 8
    for (int64_t row = threadIdx.y; row < p.rows; row += 32) sum += workspace[row * p.width + column];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = warp_sum(shared[threadIdx.x][threadIdx.y]);
  const int64_t out_column = blockIdx.x * int64_t{32} + threadIdx.y;
  if (threadIdx.x == 0 && out_column < p.width)
    out[out_column] = reduction.accumulate ? out[out_column] + sum : sum;
}

template <typename A>
void finalize_column_sums(const ColumnReductions& p, cudaStream_t stream) {
  unsigned sums = 1;
  while (sums < std::size(p.sums) && p.sums[sums].workspace != nullptr) ++sums;
  const dim3 grid(static_cast<unsigned>(ceil_div(p.width, 32)), sums);
  finalize_column_sums_kernel<A><<<grid, dim3(32, 32), 0, stream>>>(p);
  check_launch("finalize_column_sums");
}

}  // namespace teratron::cuda
