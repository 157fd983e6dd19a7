// Second stage of the sums over rows: adds the partial sums of the blocks in a fixed order.
#pragma once

#include <iterator>

#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/common/row_sum.h"

namespace teratron::cuda {

struct PartialSums {
  RowSum sums[3];  // a later one only with those before it
  int64_t count, width;
};

/// out[c] (+)= sum over r < count of partial[r * width + c], for up to three sums (blockIdx.y). Block (32, 32).
template <typename A>
__global__ void __launch_bounds__(1024) add_partials_kernel(PartialSums p) {
  __shared__ A shared[32][33];
  const RowSum& of = p.sums[blockIdx.y];
  const A* const partial = static_cast<const A*>(of.partial);
  A* const out = static_cast<A*>(of.out);
  const int64_t column = blockIdx.x * int64_t{32} + threadIdx.x;
  A sum = 0;
  if (column < p.width) {
#pragma unroll 8
    for (int64_t row = threadIdx.y; row < p.count; row += 32) sum += partial[row * p.width + column];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = warp_sum(shared[threadIdx.x][threadIdx.y]);
  const int64_t mine = blockIdx.x * int64_t{32} + threadIdx.y;
  if (threadIdx.x == 0 && mine < p.width) out[mine] = of.adds ? out[mine] + sum : sum;
}

template <typename A>
void add_partials(const PartialSums& p, cudaStream_t stream) {
  unsigned sums = 1;
  while (sums < std::size(p.sums) && p.sums[sums].partial != nullptr) ++sums;
  const dim3 grid(static_cast<unsigned>(ceil_div(p.width, 32)), sums);
  add_partials_kernel<A><<<grid, dim3(32, 32), 0, stream>>>(p);
  check_launch("add_partials");
}

}  // namespace teratron::cuda
