// Elementwise work on rows: a thread keeps one pack of columns (its bias stays in registers) and walks down
// the rows.
#pragma once

#include "teratron/kernels/common/device.cuh"

namespace teratron::cuda {

struct Tiling {
  dim3 grid, block;
};

/// `packs` column packs by `rows` rows, by about so many blocks per multiprocessor: enough to fill the GPU several times
/// over; the rest of the rows is walked.
inline Tiling tile_rows(int64_t packs, int64_t rows, int64_t blocks_per_multiprocessor = 32) {
  constexpr int threads = 256;
  const int64_t columns = ceil_div(packs, threads);
  const int64_t x = ceil_div(ceil_div(packs, columns), 32) * 32;  // equal shares, rounded up to whole warps
  const int64_t y = threads / x > rows ? rows : threads / x;
  const int64_t wanted = ceil_div(multiprocessors() * blocks_per_multiprocessor, columns);
  const int64_t down = ceil_div(rows, y);
  return {.grid = dim3(static_cast<unsigned>(columns), static_cast<unsigned>(down < wanted ? down : wanted)),
          .block = dim3(static_cast<unsigned>(x), static_cast<unsigned>(y))};
}

/// First element of this thread's column pack; >= width: the thread has nothing to do.
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

/// What one row gives a thread to work on.
template <typename T, int N, int K>
struct Inputs {
  Pack<T, N> pack[K];
};

/// This thread's rows in batches of R: `read` of the whole batch is issued before the first `work`, so that enough
/// loads are in flight (the compiler cannot move a load over a store that might alias).
template <int R, typename In, typename Read, typename Work>
__device__ void walk_rows(int64_t rows, Read&& read, Work&& work) {
  const int64_t step = tile_row_step();
  for (int64_t first = tile_first_row(); first < rows; first += R * step) {
    In in[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (first + r * step < rows) read(first + r * step, in[r]);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (first + r * step < rows) work(first + r * step, in[r]);
    }
  }
}

/// One pack of a vector that may be null (zeros).
template <int N, typename T, typename A>
__device__ void read_or_zero(const void* from, int64_t column, A (&out)[N]) {
  if (from != nullptr) return widen(load<N>(static_cast<const T*>(from) + column), out);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = A(0);
}

}  // namespace teratron::cuda
