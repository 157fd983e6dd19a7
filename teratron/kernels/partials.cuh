// Second stage of the sums over rows: adds the partial sums of the blocks in a fixed order.
#pragma once

#include "teratron/kernels/device.cuh"

namespace teratron::cuda {

/// out[c] = sum over r < count of partial[r * width + c], for up to two arrays (blockIdx.y). Block (32, 32).
template <typename A>
__global__ void __launch_bounds__(1024) add_partials_kernel(const A* first, const A* second, A* first_out,
                                                            A* second_out, int64_t count, int64_t width) {
  __shared__ A shared[32][33];
  const A* const partial = blockIdx.y == 0 ? first : second;
  A* const out = blockIdx.y == 0 ? first_out : second_out;
  const int64_t column = blockIdx.x * int64_t{32} + threadIdx.x;
  A sum = 0;
  if (column < width) {
#pragma unroll 8
    for (int64_t row = threadIdx.y; row < count; row += 32) sum += partial[row * width + column];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = warp_sum(shared[threadIdx.x][threadIdx.y]);
  const int64_t mine = blockIdx.x * int64_t{32} + threadIdx.y;
  if (threadIdx.x == 0 && mine < width) out[mine] = sum;
}

struct PartialSums {
  const void *first, *second;  // second may be null
  void *first_out, *second_out;
  int64_t count, width;
};

template <typename A>
void add_partials(const PartialSums& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(p.width, 32)), p.second == nullptr ? 1 : 2);
  add_partials_kernel<A><<<grid, dim3(32, 32), 0, stream>>>(
      static_cast<const A*>(p.first), static_cast<const A*>(p.second), static_cast<A*>(p.first_out),
      static_cast<A*>(p.second_out), p.count, p.width);
  check_launch("add_partials");
}

}  // namespace teratron::cuda
