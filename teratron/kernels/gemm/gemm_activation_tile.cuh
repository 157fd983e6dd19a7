// The kernels of gemm_activation_cuda.h: tiles, and how the threads of a block share them.
//
// Two blocks of a cluster, one per multiprocessor, take two tiles of 128 x 256 or 128 x 192 that lie one below the other and
// share what they read of w. A warp of a block copies operands; two warpgroups multiply, each 64 rows, and leave the product,
// rounded, in shared memory (gemm_activation_multiply.cuh); three or six warps apply the activation to it while the next tile is
// multiplied (gemm_activation_apply.cuh).
#pragma once

#include "teratron/kernels/gemm/gemm_activation_cuda.h"
#include "teratron/kernels/gemm/hopper.cuh"
#include "teratron/kernels/pointwise/activation_math.cuh"

namespace teratron::cuda::gemm_activation {

using namespace hopper;
using bf16 = __nv_bfloat16;

constexpr int tile_rows = 128, half_rows = tile_rows / 2, tile_k = 64;
constexpr int blocks_in_cluster = 2;
constexpr int group = 128;
constexpr int row_values = 64;  // bf16 in the 128 bytes of an operand's row

// How wide tiles are, how many threads apply the activation, how many stages operands have and how many packs of z are on their
// way to an activator, of how many parts at most, and the registers of a thread that helps and of one that multiplies.

/// Multiplies with the least energy.
struct Wide {
  static constexpr int tile_columns = 256, activators = 96, stages = 3, slots = 6, most_parts = 2;
  static constexpr int few_registers = 104, many_registers = 200;
};
/// Applies activations twice as fast, for products that are soon made, being of a short k. Not for gated ones.
struct Narrow {
  static constexpr int tile_columns = 192, activators = 192, stages = 4, slots = 3, most_parts = 1;
  static constexpr int few_registers = 104, many_registers = 152;
};

template <typename Choices>
struct Form : Choices {
  static constexpr int half_columns = Choices::tile_columns / 2;
  static constexpr int helpers = (32 + Choices::activators + group - 1) / group * group;
  static constexpr int threads = helpers + 2 * group;
  static constexpr int registers = Choices::few_registers * helpers + Choices::many_registers * 2 * group;
  /// Of a row of the product: eight rows begin in different banks.
  static constexpr int pitch = Choices::tile_columns + 8;
  /// Whole rows that the activators take at a time.
  static constexpr int rows_at_once = Choices::activators / (Choices::tile_columns / 8);
};

template <typename F>
struct alignas(1024) Shared {
  bf16 a[F::stages][tile_rows * tile_k];
  bf16 b[F::stages][F::tile_columns * tile_k];
  bf16 product[tile_rows * F::pitch];
  float sums[F::rows_at_once][F::most_parts * F::tile_columns];
  uint4 ahead[F::slots][F::activators];  // of z: each thread's own
  uint64_t arrived[F::stages], taken[F::stages];
};

struct Params {
  CUtensorMap a, b;
  GemmActivationShape shape;
  const bf16* bias;
  const bf16* z_in;
  bf16 *z_out, *out;
  float* partial;
  GemmTurn turn;
};

/// What a kernel computes, and how many parts an activation's argument has: itself, or gate|up.
template <typename Choices, bool is_backward, Activation kind>
struct Task : Form<Choices> {
  using F = Form<Choices>;
  static constexpr bool backward = is_backward, gated = takes_up<kind>, turns = false;
  static constexpr Activation activation = kind;
  static constexpr int parts = parts_of(kind);
  /// Columns of the activation's result in a tile: a gated forward computes their gates and ups.
  static constexpr int columns = !backward && gated ? F::half_columns : F::tile_columns;
  static_assert(F::activators % (columns / 8) == 0 && parts <= F::most_parts);
  using Shared = gemm_activation::Shared<F>;
};

/// The product alone, whose queries and keys are turned.
struct TurnTask : Form<Wide> {
  static constexpr bool backward = false, gated = false, turns = true;
  static constexpr int columns = tile_columns;
  using Shared = gemm_activation::Shared<Form<Wide>>;
};

struct Tile {
  int64_t row, column;  // the first, of the activation's result
};

/// The tiles of a block one after the other: strips of eight columns of tiles, each row by row, so that what blocks compute at a
/// time shares its operands in L2.
class Walk {
 public:
  __device__ Walk(const GemmActivationShape& shape, int columns)
      : columns_(columns),
        strip_tiles_(strip_columns * tiles(shape.rows, tile_rows * blocks_in_cluster)),
        across_(tiles(shape.width, columns)),
        within_(blockIdx.x / blocks_in_cluster) {
    enter_strip();
  }
  __device__ bool more() const { return across_ > 0; }
  __device__ void next() {
    within_ += gridDim.x / blocks_in_cluster;
    enter_strip();
  }
  __device__ Tile tile() const {
    uint32_t row = within_ / strip_columns, column = within_ % strip_columns;
    if (across_ < strip_columns) {
      row = within_ / across_;
      column = within_ % across_;
    }
    return {int64_t{row * blocks_in_cluster + block_in_cluster()} * tile_rows,
            int64_t{first_ + column} * columns_};
  }

 private:
  static constexpr uint32_t strip_columns = 8;
  __device__ static uint32_t tiles(int64_t size, int tile) {
    return static_cast<uint32_t>((size + tile - 1) / tile);
  }
  /// Goes on to the strip that the tile lies in.
  __device__ void enter_strip() {
    while (across_ > 0) {
      const uint32_t here = across_ < strip_columns ? strip_tiles_ / strip_columns * across_ : strip_tiles_;
      if (within_ < here) return;
      within_ -= here;
      first_ += strip_columns;
      across_ = across_ < strip_columns ? 0 : across_ - strip_columns;
    }
  }
  uint32_t columns_, strip_tiles_;
  uint32_t first_ = 0, across_;  // columns of tiles: the strip's first, and those from there on
  uint32_t within_;              // the strip
};

/// The stages' ring as one of its users sees it.
template <int stages>
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
