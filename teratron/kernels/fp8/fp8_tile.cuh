// FP8 output tiles: a block computes a tile of a matrix and writes it and its transpose.
#pragma once

#include <cuda_fp8.h>

#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/fp8/launchers.h"

namespace teratron::cuda {

/// A tile staged for the transpose. A row is a column of the matrix; its words are permuted so that neither
/// the stores (one word of every pack) nor the 16-byte loads have bank conflicts.
struct Fp8Tile {
  static constexpr int threads = 256;
  static constexpr int pack = 8;                  // columns of a thread
  static constexpr int columns = 64, rows = 128;  // of a block; 4 rows by 8 columns per thread
  static constexpr int packs = columns / pack;    // 8
  static constexpr int quads = rows / 4;          // 32
  static constexpr int groups = rows / 16;        // 16-byte pieces of a transposed row
  static_assert(packs * quads == threads);

  /// Tiles of a matrix across (x) and down (y and z, of which the last may have tiles past the end).
  static dim3 grid(int64_t matrix_rows, int64_t matrix_columns) {
    const int64_t down = ceil_div(matrix_rows, rows), layers = ceil_div(down, max_grid_y);
    return {static_cast<unsigned>(ceil_div(matrix_columns, columns)),
            static_cast<unsigned>(ceil_div(down, layers)), static_cast<unsigned>(layers)};
  }
  /// Row of tiles of this block.
  __device__ static int64_t tile_row() { return blockIdx.z * int64_t{gridDim.y} + blockIdx.y; }

  uint4 pieces[columns][groups];

  __device__ void put(int column, int quad, uint32_t word) {
    reinterpret_cast<uint32_t*>(pieces[column])[quad ^ (column / pack * 4)] = word;
  }
  __device__ uint4 get(int column, int group) const { return pieces[column][group ^ (column / pack)]; }

  /// Writes the whole tile, after a barrier, to the columns of `to` from `first_column` on, of which
  /// `columns_left` exist.
  __device__ void write_transposed(const Fp8Output& to, int64_t first_column, int64_t columns_left) const {
#pragma unroll
    for (int unit = threadIdx.x; unit < columns * groups; unit += threads) {
      const int column = unit / groups, group = unit % groups;
      const int64_t row = tile_row() * rows + group * 16;
      if (column >= columns_left || row >= to.rows) continue;
      auto* const out = static_cast<uint8_t*>(to.transposed) + (first_column + column) * to.rows + row;
      *reinterpret_cast<uint4*>(out) = get(column, group);
    }
  }
};

/// Position of this thread's four rows by eight columns.
struct Fp8Position {
  int pack = threadIdx.x % Fp8Tile::packs, quad = threadIdx.x / Fp8Tile::packs;  // in the tile
  int64_t first_column = blockIdx.x * int64_t{Fp8Tile::columns};                 // of the tile
  int64_t column = first_column + pack * Fp8Tile::pack;
  int64_t row = Fp8Tile::tile_row() * Fp8Tile::rows + quad * 4;
};

/// Four words of four bytes, transposed in place: word i gets byte i of every word.
__device__ inline void transpose_bytes(uint32_t (&word)[4]) {
  const uint32_t a = __byte_perm(word[0], word[1], 0x5140), b = __byte_perm(word[2], word[3], 0x5140);
  const uint32_t c = __byte_perm(word[0], word[1], 0x7362), d = __byte_perm(word[2], word[3], 0x7362);
  word[0] = __byte_perm(a, b, 0x5410);
  word[1] = __byte_perm(a, b, 0x7632);
  word[2] = __byte_perm(c, d, 0x5410);
  word[3] = __byte_perm(c, d, 0x7632);
}

/// Largest magnitude as bits, which order like the values, with NaN on top.
template <typename T, int N>
__device__ uint32_t magnitude(const Pack<T, N>& x) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) most = max(most, __float_as_uint(widen(x.v[i])) & 0x7FFFFFFFu);
  return most;
}

/// Before compute capability 8.9 the conversion is a hundred instructions, which take long to compile at each
/// use. Later GPUs run them only from a build that has nothing but PTX for them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
#define TERATRON_FP8_CONVERSION __noinline__
#else
#define TERATRON_FP8_CONVERSION __forceinline__
#endif
template <__nv_fp8_interpretation_t kind>
__device__ TERATRON_FP8_CONVERSION uint32_t to_fp8(float2 x) {
  return __nv_cvt_float2_to_fp8x2(x, __NV_SATFINITE, kind);
}
#undef TERATRON_FP8_CONVERSION

/// A thread's part of a tile in FP8.
template <Fp8Format format>
struct Fp8Quad {
  uint32_t left[4], right[4];  // columns 0 to 3 and 4 to 7 of each row
  uint32_t amax = 0;           // bits

  template <typename T>
  __device__ void set(int r, const Pack<T, Fp8Tile::pack>& x, float scale) {
    amax = max(amax, magnitude(x));
    left[r] = word(&x.v[0], scale);
    right[r] = word(&x.v[4], scale);
  }
  /// The first `count` rows.
  __device__ void write_rows(const Fp8Output& to, int64_t row, int64_t column, int count = 4) const {
    auto* const out = static_cast<uint8_t*>(to.out) + row * to.columns + column;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (r >= count) return;
      *reinterpret_cast<uint2*>(out + r * to.columns) = make_uint2(left[r], right[r]);
    }
  }
  /// Stores to the tile; call once.
  __device__ void put(Fp8Tile& tile, const Fp8Position& place) {
    transpose_bytes(left);
    transpose_bytes(right);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      tile.put(place.pack * Fp8Tile::pack + i, place.quad, left[i]);
      tile.put(place.pack * Fp8Tile::pack + 4 + i, place.quad, right[i]);
    }
  }

 private:
  template <typename T>
  __device__ static uint32_t word(const T* x, float scale) {
    constexpr auto kind = format == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2;
    const float2 low{widen(x[0]) * scale, widen(x[1]) * scale},
        high{widen(x[2]) * scale, widen(x[3]) * scale};
    return to_fp8<kind>(low) | to_fp8<kind>(high) << 16;
  }
};

/// *amax <- max(*amax, the block's largest magnitude), unless null.
__device__ inline void update_amax(float* amax, uint32_t thread_amax) {
  if (amax == nullptr) return;
  constexpr int warps = Fp8Tile::threads / 32;
  __shared__ uint32_t warp_amax[warps];
  thread_amax = warp_max(thread_amax);
  if (threadIdx.x % 32 == 0) warp_amax[threadIdx.x / 32] = thread_amax;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int i = 1; i < warps; ++i) thread_amax = max(thread_amax, warp_amax[i]);
  auto* const bits = reinterpret_cast<unsigned*>(amax);
  // Most blocks do not change it and skip the atomic.
  if (thread_amax > *reinterpret_cast<volatile unsigned*>(bits)) atomicMax(bits, thread_amax);
}

}  // namespace teratron::cuda
