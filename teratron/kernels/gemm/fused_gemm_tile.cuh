// Warp-specialized persistent GEMMs with a fused activation or RoPE epilogue: tile shapes, shared memory,
// scheduling.
//
// A cluster of two blocks, one per SM, computes two vertically adjacent tiles of 128 x 256 or 128 x 192,
// which share operand b by TMA multicast. In a block one producer warp loads operands; two consumer
// warpgroups multiply 64 rows each and store the rounded product in shared memory (fused_gemm_mainloop.cuh).
// Three or six epilogue warps apply the activation (fused_gemm_activation.cuh) or RoPE (fused_gemm_rope.cuh)
// to it while the next tile is multiplied.
// Measurements: docs/notes/fused_gemm.md.
#pragma once

#include "teratron/kernels/common/hopper.cuh"
#include "teratron/kernels/gemm/launchers.h"
#include "teratron/kernels/pointwise/activation_math.cuh"

namespace teratron::cuda::fused_gemm {

using namespace hopper;
using bf16 = __nv_bfloat16;

constexpr int tile_rows = 128, warpgroup_rows = tile_rows / 2, tile_k = 64;
constexpr int blocks_per_cluster = 2;
constexpr int warpgroup = 128;      // threads
constexpr int swizzle_values = 64;  // bf16 in a 128-byte swizzled row

// epilogue_threads: threads of the epilogue. stages: of the operand pipeline. prefetch_packs: packs of z in
// flight per epilogue thread, for up to max_parts parts (z, or gate and up). Registers are per thread.

/// The least energy per FLOP.
struct Tile256 {
  static constexpr int tile_columns = 256, epilogue_threads = 96, stages = 3, prefetch_packs = 6,
                       max_parts = 2;
  static constexpr int auxiliary_registers = 104, consumer_registers = 200;
};
/// Twice the epilogue throughput, for short main loops (small k). Not for gated activations.
struct Tile192 {
  static constexpr int tile_columns = 192, epilogue_threads = 192, stages = 4, prefetch_packs = 3,
                       max_parts = 1;
  static constexpr int auxiliary_registers = 104, consumer_registers = 152;
};

template <typename TileShape>
struct TileConfig : TileShape {
  static constexpr int half_columns = TileShape::tile_columns / 2;
  static constexpr int auxiliary_threads =
      (32 + TileShape::epilogue_threads + warpgroup - 1) / warpgroup * warpgroup;
  static constexpr int threads = auxiliary_threads + 2 * warpgroup;
  static constexpr int registers =
      TileShape::auxiliary_registers * auxiliary_threads + TileShape::consumer_registers * 2 * warpgroup;
  /// Row pitch of the product in shared memory: eight rows start in different banks.
  static constexpr int pitch = TileShape::tile_columns + 8;
  /// Rows that the epilogue threads process at a time.
  static constexpr int rows_at_once = TileShape::epilogue_threads / (TileShape::tile_columns / 8);
};

template <typename F>
struct alignas(1024) Shared {
  bf16 a[F::stages][tile_rows * tile_k];
  bf16 b[F::stages][F::tile_columns * tile_k];
  bf16 product[tile_rows * F::pitch];
  float sums[F::rows_at_once][F::max_parts * F::tile_columns];
  uint4 prefetch[F::prefetch_packs][F::epilogue_threads];  // packs of z, private to each thread
  uint64_t full[F::stages], empty[F::stages];              // mbarriers
};

struct Params {
  CUtensorMap a, b;
  CUtensorMap added_a, added_b;  // unused without an added product
  FusedGemmShape shape;
  const bf16* bias;
  const bf16* z_in;
  bf16 *z_out, *out;
  float* dbias_workspace;
  GemmRope rope;
};

/// GEMM and activation, or its backward.
template <typename TileShape, bool is_backward, Activation kind>
struct ActivationGemm : TileConfig<TileShape> {
  using F = TileConfig<TileShape>;
  static constexpr bool backward = is_backward, gated = gated_kind<kind>, is_rope = false;
  static constexpr Activation activation = kind;
  static constexpr int parts = parts_of(kind);  // of z: one, or gate|up
  /// Columns of the output per tile; a gated forward computes a gate and an up for each.
  static constexpr int columns = !backward && gated ? F::half_columns : F::tile_columns;
  static_assert(F::epilogue_threads % (columns / 8) == 0 && parts <= F::max_parts);
  using Shared = fused_gemm::Shared<F>;
};

/// GEMM, then RoPE on queries and keys.
struct RopeGemm : TileConfig<Tile256> {
  static constexpr bool backward = false, gated = false, is_rope = true;
  static constexpr int columns = tile_columns;
  using Shared = fused_gemm::Shared<TileConfig<Tile256>>;
};

/// Steps of the main loop over k. Beyond the end of a matrix TMA loads zeros.
__device__ inline int steps_of(int64_t k) {
  return (static_cast<int>(k) + tile_k - 1) / tile_k;
}

struct Tile {
  int64_t row, column;  // first element of the output
};

/// Iterates over the tiles of a block: strips of eight tile columns, each row by row, so that concurrent
/// blocks share operands in L2.
class TileScheduler {
 public:
  __device__ TileScheduler(const FusedGemmShape& shape, int columns)
      : columns_(columns),
        strip_tiles_(strip_columns * tiles(shape.rows, tile_rows * blocks_per_cluster)),
        across_(tiles(shape.width, columns)),
        within_(blockIdx.x / blocks_per_cluster) {
    enter_strip();
  }
  __device__ bool more() const { return across_ > 0; }
  __device__ void next() {
    within_ += gridDim.x / blocks_per_cluster;
    enter_strip();
  }
  __device__ Tile tile() const {
    uint32_t row = within_ / strip_columns, column = within_ % strip_columns;
    if (across_ < strip_columns) {
      row = within_ / across_;
      column = within_ % across_;
    }
    return {int64_t{row * blocks_per_cluster + cluster_rank()} * tile_rows,
            int64_t{first_ + column} * columns_};
  }

 private:
  static constexpr uint32_t strip_columns = 8;
  __device__ static uint32_t tiles(int64_t size, int tile) {
    return static_cast<uint32_t>((size + tile - 1) / tile);
  }
  /// Advances to the strip that contains the tile.
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
  uint32_t first_ = 0, across_;  // tile columns: the strip's first, and the number remaining
  uint32_t within_;              // tile index in the strip
};

/// Position of a producer or consumer in the operand pipeline.
template <int stages>
class PipelineState {
 public:
  __device__ int stage() const { return stage_; }
  __device__ uint32_t phase() const { return phase_; }
  __device__ void next() {
    if (++stage_ == stages) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }

 private:
  int stage_ = 0;
  uint32_t phase_ = 0;
};

/// Index among the epilogue threads, which follow the producer warp.
__device__ inline int epilogue_thread() {
  return static_cast<int>(threadIdx.x) - 32;
}

// Named barriers of each half tile (64 rows) of the product in shared memory: full (written), empty (read).
__device__ inline int full_barrier(int half) {
  return 1 + half;
}
__device__ inline int empty_barrier(int half) {
  return 3 + half;
}

}  // namespace teratron::cuda::fused_gemm
