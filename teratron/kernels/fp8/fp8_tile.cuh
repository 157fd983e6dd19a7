// What the kernels that write FP8 share: a block makes a tile of a matrix, and writes it as it is and transposed.
#pragma once

#include <cuda_fp8.h>

#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/fp8/fp8_cuda.h"

namespace teratron::cuda {

/// A tile on its way to the transpose. A row of it is a column of the matrix, its words permuted so that neither writing
/// (one word of every pack) nor reading (16 bytes) meets a bank twice.
struct Fp8Tile {
  static constexpr int threads = 256;
  static constexpr int pack = 8;                  // columns of a thread
  static constexpr int columns = 64, rows = 128;  // of a block; a thread has 4 rows by 8 columns of it
  static constexpr int packs = columns / pack;    // 8
  static constexpr int quads = rows / 4;          // 32
  static constexpr int groups = rows / 16;        // 16-byte pieces of a transposed row
  static_assert(packs * quads == threads);

  uint4 pieces[columns][groups];

  __device__ void put(int column, int quad, uint32_t word) {
    reinterpret_cast<uint32_t*>(pieces[column])[quad ^ (column / pack * 4)] = word;
  }
  __device__ uint4 get(int column, int group) const { return pieces[column][group ^ (column / pack)]; }

  /// The whole tile, all threads having put theirs, to the columns of `to` from `first_column` on of which `columns_left`
  /// are there.
  __device__ void write_transposed(const Fp8Target& to, int64_t first_column, int64_t columns_left) const {
#pragma unroll
    for (int unit = threadIdx.x; unit < columns * groups; unit += threads) {
      const int column = unit / groups, group = unit % groups;
      const int64_t row = blockIdx.y * int64_t{rows} + group * 16;
      if (column >= columns_left || row >= to.rows) continue;
      auto* const out = static_cast<uint8_t*>(to.transposed) + (first_column + column) * to.rows + row;
      *reinterpret_cast<uint4*>(out) = get(column, group);
    }
  }
};

/// Where the four rows by eight columns of this thread begin.
struct Fp8Place {
  int pack = threadIdx.x % Fp8Tile::packs, quad = threadIdx.x / Fp8Tile::packs;  // in the tile
  int64_t first_column = blockIdx.x * int64_t{Fp8Tile::columns};                 // of the tile
  int64_t column = first_column + pack * Fp8Tile::pack;
  int64_t row = blockIdx.y * int64_t{Fp8Tile::rows} + quad * 4;
};

/// A block for every tile.
inline dim3 fp8_grid(const Fp8Target& to) {
  return {static_cast<unsigned>(ceil_div(to.columns, Fp8Tile::columns)),
          static_cast<unsigned>(ceil_div(to.rows, Fp8Tile::rows))};
}

/// Four words of four bytes, transposed in place: word i gets byte i of every word.
__device__ inline void transpose_bytes(uint32_t (&word)[4]) {
  const uint32_t a = __byte_perm(word[0], word[1], 0x5140), b = __byte_perm(word[2], word[3], 0x5140);
  const uint32_t c = __byte_perm(word[0], word[1], 0x7362), d = __byte_perm(word[2], word[3], 0x7362);
  word[0] = __byte_perm(a, b, 0x5410);
  word[1] = __byte_perm(a, b, 0x7632);
  word[2] = __byte_perm(c, d, 0x5410);
  word[3] = __byte_perm(c, d, 0x7632);
}

/// Magnitudes are compared as bits: the order is that of the values, and NaN is above all.
template <typename T, int N>
__device__ uint32_t magnitude(const Pack<T, N>& x) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) most = max(most, __float_as_uint(widen(x.v[i])) & 0x7FFFFFFFu);
  return most;
}

/// A thread's part of a tile in FP8.
template <Fp8Format format>
struct Fp8Quad {
  uint32_t left[4], right[4];  // columns 0 to 3 and 4 to 7 of each row
  uint32_t most = 0;           // magnitude

  template <typename T>
  __device__ void set(int r, const Pack<T, Fp8Tile::pack>& x, float scale) {
    most = max(most, magnitude(x));
    left[r] = word(&x.v[0], scale);
    right[r] = word(&x.v[4], scale);
  }
  __device__ void write_rows(const Fp8Target& to, int64_t row, int64_t column) const {
    auto* const out = static_cast<uint8_t*>(to.out) + row * to.columns + column;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      *reinterpret_cast<uint2*>(out + r * to.columns) = make_uint2(left[r], right[r]);
    }
  }
  /// Into the tile, once.
  __device__ void put(Fp8Tile& tile, const Fp8Place& place) {
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
    const uint32_t a = __nv_cvt_float2_to_fp8x2(low, __NV_SATFINITE, kind);
    const uint32_t b = __nv_cvt_float2_to_fp8x2(high, __NV_SATFINITE, kind);
    return a | b << 16;
  }
};

/// Raises *amax, unless null, to the block's largest magnitude.
__device__ inline void raise(float* amax, uint32_t mine) {
  if (amax == nullptr) return;
  constexpr int warps = Fp8Tile::threads / 32;
  __shared__ uint32_t of_warp[warps];
  mine = warp_max(mine);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int i = 1; i < warps; ++i) mine = max(mine, of_warp[i]);
  auto* const bits = reinterpret_cast<unsigned*>(amax);
  // Most blocks raise nothing and need no atomic.
  if (mine > *reinterpret_cast<volatile unsigned*>(bits)) atomicMax(bits, mine);
}

}  // namespace teratron::cuda
