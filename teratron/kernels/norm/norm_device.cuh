// Shared by the forward and backward norm kernels.
// Measurements: docs/notes/norm.md.
#pragma once

#include "teratron/kernels/common/async_copy.cuh"
#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/norm/launchers.h"

namespace teratron::cuda {

/// Loads one pack of weight or bias (zeros if null), stored as T or f32.
template <int N, typename T, typename A>
__device__ void load_parameter(const NormShape& shape, const void* parameter, int64_t column, A (&out)[N]) {
  if (parameter == nullptr) {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = A(0);
  } else if (shape.weight_dtype == shape.dtype) {
    widen(load<N>(static_cast<const T*>(parameter) + column), out);
  } else {
    constexpr int M = N < 4 ? N : 4;
#pragma unroll
    for (int j = 0; j < N; j += M) {
      const Pack<float, M> p = load<M>(static_cast<const float*>(parameter) + column + j);
#pragma unroll
      for (int i = 0; i < M; ++i) out[j + i] = p.v[i];
    }
  }
}

/// weight, or 1 + weight.
template <int N, typename T, typename A>
__device__ void load_gain(const NormShape& shape, const void* weight, int64_t column, A (&out)[N]) {
  load_parameter<N, T>(shape, weight, column, out);
  const A one = shape.zero_centered ? A(1) : A(0);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] += one;
}

/// More threads would have too few registers in the backward.
inline constexpr int max_row_threads = 512;

/// Shared floats for the block's reductions, per row: two of up to 32 warps.
inline constexpr int row_sums = 64, row_sums_bytes = 2 * row_sums * static_cast<int>(sizeof(float));

/// Distribution of a row over the threads of a block; packs_per_thread = 0: it does not fit in registers.
struct RowTiling {
  int threads;
  int packs_per_thread;
};

/// Minimizes instructions: per row, a warp issues some for each pack of its threads, plus the equivalent of
/// `overhead` packs (block reductions, addresses). Four packs only for rows that fit no other way.
inline RowTiling select_row_tiling(const NormShape& shape, int pack, int overhead) {
  if (shape.width % pack != 0) return {0, 0};
  const int64_t packs = shape.width / pack;
  RowTiling best{0, 0};
  for (const int per : {1, 2, 4}) {
    const int64_t threads = ceil_div(packs, 32 * per) * 32;
    const int64_t least = best.threads * int64_t{best.packs_per_thread + overhead};
    if (threads > max_row_threads || (least > 0 && (per == 4 || threads * (per + overhead) >= least)))
      continue;
    best = {static_cast<int>(threads), per};
  }
  return best;
}

/// Resident blocks of an SM with registers for `resident_threads`.
inline int64_t resident_blocks(int resident_threads, int threads) {
  return threads < resident_threads ? resident_threads / threads : 1;
}

/// One block per row.
struct BlockRows {
  __device__ static unsigned thread() { return threadIdx.x; }
  __device__ static unsigned threads() { return blockDim.x; }
  __device__ static unsigned group() { return 0; }
  static constexpr int groups(int) { return 1; }
  __device__ static int64_t first_row() { return blockIdx.x; }
  __device__ static int64_t row_step() { return gridDim.x; }
  /// Sum over the row; `shared` as in block_sum.
  template <int K>
  __device__ static void sum(float (&x)[K], float* shared) {
    block_sum(x, shared);
  }
};

/// One warp per row, without block barriers: for short rows.
struct WarpRows {
  __device__ static unsigned thread() { return threadIdx.x % 32; }
  __device__ static constexpr unsigned threads() { return 32; }
  __device__ static unsigned group() { return threadIdx.x / 32; }
  /// Per block.
  static constexpr int groups(int block_threads) { return block_threads / 32; }
  __device__ static int64_t first_row() { return blockIdx.x * int64_t{blockDim.x / 32} + group(); }
  __device__ static int64_t row_step() { return gridDim.x * int64_t{blockDim.x / 32}; }
  template <int K>
  __device__ static void sum(float (&x)[K], float*) {
#pragma unroll
    for (int k = 0; k < K; ++k) x[k] = warp_sum(x[k]);
  }
};

/// Packs per thread of WarpRows. Differs from those of BlockRows, so that kernels can tell the two apart.
constexpr int warp_packs = 3;
static_assert(warp_packs != 1 && warp_packs != 2 && warp_packs != 4);

/// Whether WarpRows is faster than BlockRows.
inline bool prefers_warp_rows(const NormShape& shape) {
  const bool half = shape.dtype == Dtype::bf16 || shape.dtype == Dtype::f16;
  return half && shape.width % 8 == 0 && ceil_div(shape.width, 8 * 32) == warp_packs;
}

/// The current row and its pipeline stage.
template <typename Group>
struct RowCursor {
  int64_t row = Group::first_row();
  int stage = 0;

  __device__ RowCursor() {}
  __device__ void next(int stages) {
    row += Group::row_step();
    stage = stage == stages - 1 ? 0 : stage + 1;
  }
};

/// Streams rows of up to PARTS matrices of one shape through shared memory, which keeps more bytes in flight
/// than registers could. A thread reads back only what it copied itself, so no barrier is needed.
template <typename T, int PARTS, int PER, int STAGES, typename GROUP>
class RowPipeline {
 public:
  using Element = T;
  using Group = GROUP;
  using Cursor = RowCursor<Group>;
  static constexpr int N = pack_size<T>;
  using P = Pack<T, N>;

  /// `shared` has bytes(blockDim.x) bytes. Null matrices are skipped.
  __device__ RowPipeline(const NormShape& shape, const void* const (&matrices)[PARTS], const void* shared)
      : rows_(shape.rows), width_(static_cast<int>(shape.width)) {
    first_ = shared_address(shared) + Group::group() * bytes(Group::threads()) +
             Group::thread() * unsigned{sizeof(P)};
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      from_[part] = matrices[part] == nullptr ? nullptr : static_cast<const T*>(matrices[part]) + column(0);
    }
  }
  __device__ int column(int k) const { return static_cast<int>(k * Group::threads() + Group::thread()) * N; }
  __device__ bool has(int k) const { return column(k) < width_; }
  /// Element offset of pack k in a matrix.
  __device__ int64_t offset(int64_t row, int k) const { return row * width_ + column(k); }
  __device__ void read(int stage, int part, int k, float (&x)[N]) const {
    widen(load_shared<P>(slot(stage, part, k)), x);
  }
  /// Starts the copies of the first STAGES - 1 rows of this group.
  __device__ void start() const {
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage)
      fetch(stage, Group::first_row() + stage * Group::row_step());
  }
  /// Starts the copy of the row STAGES - 1 ahead and waits for the current one.
  __device__ void advance(const Cursor& cursor) const {
    fetch(cursor.stage == 0 ? STAGES - 1 : cursor.stage - 1, cursor.row + (STAGES - 1) * Group::row_step());
    cp_async_wait<STAGES - 1>();
  }
  __host__ __device__ static constexpr int bytes(int threads) {
    return STAGES * PARTS * PER * threads * static_cast<int>(sizeof(P));
  }

 private:
  __device__ SharedAddress slot(int stage, int part, int k) const {
    const unsigned pitch = Group::threads() * unsigned{sizeof(P)};
    return first_ + stage * (PARTS * PER * pitch) + (part * PER + k) * pitch;
  }
  /// One copy group, empty past the last row.
  __device__ void fetch(int stage, int64_t row) const {
    if (row < rows_) {
      const int64_t start = row * width_;
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        if (from_[part] == nullptr) continue;
#pragma unroll
        for (int k = 0; k < PER; ++k) {
          if (has(k))
            cp_async(slot(stage, part, k), from_[part] + start + k * static_cast<int>(Group::threads()) * N);
        }
      }
    }
    cp_async_commit();
  }

  int64_t rows_;
  int width_;
  SharedAddress first_;   // this thread's pack of [STAGES][PARTS][PER][threads]
  const T* from_[PARTS];  // at this thread's first column
};

}  // namespace teratron::cuda
