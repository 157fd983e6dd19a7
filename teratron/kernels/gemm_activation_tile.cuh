// The kernels of gemm_activation_cuda.h: tiles, and how the threads of a block share them.
//
// Two blocks of a cluster, one per multiprocessor, take two tiles of 128 x 256 that lie one below the other and share what
// they read of w. A warp of a block copies operands; two warpgroups multiply, each 64 rows, and leave the product, rounded, in
// shared memory (gemm_activation_multiply.cuh); three warps apply the activation to it while the next tile is multiplied
// (gemm_activation_apply.cuh).
#pragma once

#include "teratron/kernels/activation_math.cuh"
#include "teratron/kernels/gemm_activation_cuda.h"
#include "teratron/kernels/hopper.cuh"

namespace teratron::cuda::gemm_activation {

using namespace hopper;
using bf16 = __nv_bfloat16;

constexpr int tile_rows = 128, tile_columns = 256, tile_k = 64;
constexpr int half_rows = tile_rows / 2, half_columns = tile_columns / 2;
constexpr int blocks_in_cluster = 2, stages = 3;
constexpr int group = 128, threads = 3 * group, activators = 96;
constexpr int row_values = 64;  // bf16 in the 128 bytes of an operand's row
constexpr int slots = 6;        // for z of an activator's rows to come
/// Of a row of the product: eight rows begin in different banks.
constexpr int pitch = tile_columns + 8;

struct alignas(1024) Shared {
  bf16 a[stages][tile_rows * tile_k];
  bf16 b[stages][tile_columns * tile_k];
  bf16 product[tile_rows * pitch];
  float sums[activators / 32][2 * tile_columns];  // of a warp's rows
  uint4 ahead[slots][activators];                 // of z: each thread's own
  uint64_t arrived[stages], taken[stages];
};

struct Params {
  CUtensorMap a, b;
  GemmActivationShape shape;
  const bf16* bias;
  const bf16* z_in;
  bf16 *z_out, *out;
  float* partial;
};

/// What a kernel computes, and how many parts an activation's argument has: itself, or gate|up.
template <bool is_backward, Activation kind>
struct Task {
  static constexpr bool backward = is_backward, gated = takes_up<kind>;
  static constexpr Activation activation = kind;
  static constexpr int parts = gated ? 2 : 1;
  /// Columns of the activation's result in a tile: a gated forward computes their gates and ups.
  static constexpr int columns = !backward && gated ? half_columns : tile_columns;
};

struct Tile {
  int64_t row, column;  // the first, of the activation's result
};

/// The tiles of a block one after the other: eight columns of tiles row by row, then the next eight, so that what blocks
/// compute at a time shares its operands in L2.
class Walk {
 public:
  __device__ Walk(const GemmActivationShape& shape, int columns)
      : columns_(columns),
        down_(tiles(shape.rows, tile_rows * blocks_in_cluster)),
        across_(tiles(shape.width, columns)),
        index_(blockIdx.x / blocks_in_cluster) {}
  __device__ bool more() const { return index_ < down_ * across_; }
  __device__ void next() { index_ += gridDim.x / blocks_in_cluster; }
  __device__ Tile tile() const {
    const uint32_t strip = index_ / (8 * down_), within = index_ % (8 * down_);
    const uint32_t wide = min(8u, across_ - 8 * strip);
    return {int64_t{within / wide * blocks_in_cluster + block_in_cluster()} * tile_rows,
            int64_t{8 * strip + within % wide} * columns_};
  }

 private:
  __device__ static uint32_t tiles(int64_t size, int tile) {
    return static_cast<uint32_t>((size + tile - 1) / tile);
  }
  uint32_t columns_, down_, across_, index_;
};

/// The stages' ring as one of its users sees it.
class Ring {
 public:
  __device__ int stage() const { return stage_; }
  __device__ uint32_t round() const { return round_; }
  __device__ void next() {
    if (++stage_ == stages) {
      stage_ = 0;
      round_ ^= 1;
    }
  }

 private:
  int stage_ = 0;
  uint32_t round_ = 0;
};

/// Among the threads that apply the activation; they follow the copying warp.
__device__ inline int activator() {
  return static_cast<int>(threadIdx.x) - 32;
}

// Named barriers of each half of a tile's rows: the product is there; it was read.
__device__ inline int ready(int half) {
  return 1 + half;
}
__device__ inline int read(int half) {
  return 3 + half;
}

}  // namespace teratron::cuda::gemm_activation
