// Shared by the forward and the backward of the norms.
#pragma once

#include "teratron/kernels/common/async_copy.cuh"
#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/norm/norm_cuda.h"

namespace teratron::cuda {

/// One pack of weight or bias (zeros when null), stored as T or f32.
template <int N, typename T, typename A>
__device__ void read_parameter(const NormShape& shape, const void* parameter, int64_t column, A (&out)[N]) {
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

/// The gain: weight, or 1 + weight.
template <int N, typename T, typename A>
__device__ void read_gain(const NormShape& shape, const void* weight, int64_t column, A (&out)[N]) {
  read_parameter<N, T>(shape, weight, column, out);
  const A one = shape.zero_centered ? A(1) : A(0);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] += one;
}

/// More threads would leave each too few registers for the backward.
inline constexpr int max_row_threads = 512;

/// Of a block's sums, per turn: two places of 32 warps.
inline constexpr int row_sums = 64, row_sums_bytes = 2 * row_sums * static_cast<int>(sizeof(float));

/// How a row fits into the registers of a block; packs_per_thread = 0: it does not.
struct RowPlan {
  int threads;
  int packs_per_thread;
};

/// The plan of the fewest instructions: a warp issues some for every pack of its threads and as many as for `overhead`
/// packs once per row (sums over the block, addresses). Four packs serve rows that fit no other way.
inline RowPlan plan_row(const NormShape& shape, int pack, int overhead) {
  if (shape.width % pack != 0) return {0, 0};
  const int64_t packs = shape.width / pack;
  RowPlan best{0, 0};
  for (const int per : {1, 2, 4}) {
    const int64_t threads = ceil_div(packs, 32 * per) * 32;
    const int64_t least = best.threads * int64_t{best.packs_per_thread + overhead};
    if (threads > max_row_threads || (least > 0 && (per == 4 || threads * (per + overhead) >= least)))
      continue;
    best = {static_cast<int>(threads), per};
  }
  return best;
}

/// Blocks that run at once on a multiprocessor which has registers for so many threads.
inline int64_t blocks_at_once(int resident_threads, int threads) {
  return threads < resident_threads ? resident_threads / threads : 1;
}

/// A block takes a row at a time.
struct BlockRows {
  __device__ static unsigned thread() { return threadIdx.x; }
  __device__ static unsigned threads() { return blockDim.x; }
  __device__ static unsigned team() { return 0; }
  static constexpr int teams(int) { return 1; }
  __device__ static int64_t first_row() { return blockIdx.x; }
  __device__ static int64_t row_step() { return gridDim.x; }
  /// Over the row; `shared` as block_sum wants it.
  template <int K>
  __device__ static void sum(float (&x)[K], float* shared) {
    block_sum(x, shared);
  }
};

/// A warp takes a row at a time and waits for no other: for short rows.
struct WarpRows {
  __device__ static unsigned thread() { return threadIdx.x % 32; }
  __device__ static constexpr unsigned threads() { return 32; }
  __device__ static unsigned team() { return threadIdx.x / 32; }
  /// Of a block.
  static constexpr int teams(int block_threads) { return block_threads / 32; }
  __device__ static int64_t first_row() { return blockIdx.x * int64_t{blockDim.x / 32} + team(); }
  __device__ static int64_t row_step() { return gridDim.x * int64_t{blockDim.x / 32}; }
  template <int K>
  __device__ static void sum(float (&x)[K], float*) {
#pragma unroll
    for (int k = 0; k < K; ++k) x[k] = warp_sum(x[k]);
  }
};

/// Of a thread of such a warp.
constexpr int warp_packs = 3;
static_assert(warp_packs != 1 && warp_packs != 2 &&
              warp_packs != 4);  // of blocks' threads: kernels tell them apart by it

/// Whether warps take rows faster than blocks do.
inline bool are_for_warps(const NormShape& shape) {
  const bool half = shape.dtype == Dtype::bf16 || shape.dtype == Dtype::f16;
  return half && shape.width % 8 == 0 && ceil_div(shape.width, 8 * 32) == warp_packs;
}

/// The row that is worked on and the stage of the pipe that it lies in.
template <typename Team>
struct RowTurn {
  int64_t row = Team::first_row();
  int stage = 0;

  __device__ RowTurn() {}
  __device__ void next(int stages) {
    row += Team::row_step();
    stage = stage == stages - 1 ? 0 : stage + 1;
  }
};

/// Rows of up to PARTS matrices of one shape on their way through shared memory, which keeps more bytes in flight than
/// registers could. A thread reads back only what it copied itself, so no barrier is needed.
template <typename T, int PARTS, int PER, int STAGES, typename TEAM>
class RowPipe {
 public:
  using Element = T;
  using Team = TEAM;
  using Turn = RowTurn<Team>;
  static constexpr int N = pack_size<T>;
  using P = Pack<T, N>;

  /// `shared`: bytes(blockDim.x) of it. Matrices that are null are not fetched.
  __device__ RowPipe(const NormShape& shape, const void* const (&matrices)[PARTS], const void* shared)
      : rows_(shape.rows), width_(static_cast<int>(shape.width)) {
    first_ =
        shared_address(shared) + Team::team() * bytes(Team::threads()) + Team::thread() * unsigned{sizeof(P)};
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      from_[part] = matrices[part] == nullptr ? nullptr : static_cast<const T*>(matrices[part]) + column(0);
    }
  }
  __device__ int column(int k) const { return static_cast<int>(k * Team::threads() + Team::thread()) * N; }
  __device__ bool has(int k) const { return column(k) < width_; }
  /// Of pack k in a matrix.
  __device__ int64_t offset(int64_t row, int k) const { return row * width_ + column(k); }
  __device__ void read(int stage, int part, int k, float (&x)[N]) const {
    widen(load_shared<P>(place(stage, part, k)), x);
  }
  /// Sends for the first STAGES - 1 rows of this team.
  __device__ void start() const {
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage)
      fetch(stage, Team::first_row() + stage * Team::row_step());
  }
  /// Sends for the row STAGES - 1 turns ahead and waits for this one.
  __device__ void advance(const Turn& turn) const {
    fetch(turn.stage == 0 ? STAGES - 1 : turn.stage - 1, turn.row + (STAGES - 1) * Team::row_step());
    await_copy_groups<STAGES - 1>();
  }
  __host__ __device__ static constexpr int bytes(int threads) {
    return STAGES * PARTS * PER * threads * static_cast<int>(sizeof(P));
  }

 private:
  __device__ SharedAddress place(int stage, int part, int k) const {
    const unsigned pitch = Team::threads() * unsigned{sizeof(P)};
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
            copy_async(place(stage, part, k),
                       from_[part] + start + k * static_cast<int>(Team::threads()) * N);
        }
      }
    }
    end_copy_group();
  }

  int64_t rows_;
  int width_;
  SharedAddress first_;   // of [STAGES][PARTS][PER][threads] packs, this thread's
  const T* from_[PARTS];  // this thread's first column
};

}  // namespace teratron::cuda
