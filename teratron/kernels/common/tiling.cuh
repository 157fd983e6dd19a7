// Elementwise kernels over rows: a thread owns one pack of columns (its bias stays in registers) and loops
// over rows.
#pragma once

#include "teratron/kernels/common/device.cuh"

namespace teratron::cuda {

struct Tiling {
  dim3 grid, block;
};

/// Grid for `packs` column packs by `rows` rows with about this many blocks per SM: enough to fill the GPU
/// several times; the threads loop over the remaining rows.
inline Tiling tile_rows(int64_t packs, int64_t rows, int64_t blocks_per_sm = 32) {
  constexpr int threads = 256;
  const int64_t columns = ceil_div(packs, threads);
  const int64_t x = ceil_div(ceil_div(packs, columns), 32) * 32;  // equal shares, in whole warps
  const int64_t y = threads / x > rows ? rows : threads / x;
  const int64_t max_y = ceil_div(sm_count() * blocks_per_sm, columns);
  const int64_t down = ceil_div(rows, y);
  return {.grid = dim3(static_cast<unsigned>(columns), static_cast<unsigned>(down < max_y ? down : max_y)),
          .block = dim3(static_cast<unsigned>(x), static_cast<unsigned>(y))};
}

/// First element of this thread's column pack; threads with a column >= width have no work.
template <int N>
__device__ int64_t tile_column() {
  return (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * N;
}
__device__ inline int64_t tile_first_row() {
  return blockIdx.y * int64_t{blockDim.y} + threadIdx.y;
}
__device__ inline int64_t tile_row_step() {
  return gridDim.y * int64_t{blockDim.y};
}

/// A thread's K input packs of one row.
template <typename T, int N, int K>
struct RowPacks {
  Pack<T, N> pack[K];
};

/// Processes this thread's rows in batches of R: all `load`s of a batch are issued before the first
/// `compute`, so that enough loads are in flight (the compiler cannot move a load across a store that might
/// alias).
template <int R, typename In, typename Load, typename Compute>
__device__ void for_each_row(int64_t rows, Load&& load, Compute&& compute) {
  const int64_t step = tile_row_step();
  for (int64_t first = tile_first_row(); first < rows; first += R * step) {
    In in[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (first + r * step < rows) load(first + r * step, in[r]);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (first + r * step < rows) compute(first + r * step, in[r]);
    }
  }
}

/// Loads one pack of a vector; zeros if null.
template <int N, typename T, typename A>
__device__ void load_or_zero(const void* from, int64_t column, A (&out)[N]) {
  if (from != nullptr) return widen(load<N>(static_cast<const T*>(from) + column), out);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = A(0);
}

}  // namespace teratron::cuda
