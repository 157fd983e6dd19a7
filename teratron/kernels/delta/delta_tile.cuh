// What the kernels of the gated delta rule share. Channels of keys are padded to 128.
#pragma once

#include "teratron/kernels/delta/launchers.h"
#include "teratron/kernels/mamba/scan_tile.cuh"

namespace teratron::cuda {

inline constexpr int key_channels = max_scan_state;

using KeyTile = PaddedTile<key_channels>;
using SquareTile = PaddedTile<scan_chunk>;  // of two tokens
inline constexpr int key_tile_bytes = KeyTile::bytes(scan_chunk),
                     square_tile_bytes = SquareTile::bytes(scan_chunk);

struct DeltaPlace : ChunkPlace {
  __device__ int64_t square(int head) const {
    return ((int64_t{batch} * shape.chunks + chunk) * shape.heads + head) * scan_chunk * scan_chunk;
  }
  __device__ int64_t state(int head) const {
    return ((int64_t{batch} * shape.chunks + chunk) * shape.heads + head) * shape.head_dim * shape.state;
  }
  __device__ int64_t lengths(int group) const {
    return ((int64_t{batch} * shape.groups + group) * shape.chunks + chunk) * scan_chunk;
  }
  __device__ int keys() const { return shape.groups * shape.state; }
  __device__ float scale() const { return rsqrtf(static_cast<float>(shape.state)); }

  /// Starts copying the chunk's rows of columns column ... column + count - 1.
  template <int threads, typename T, int D>
  __device__ void copy(const PaddedTile<D>& tile, const TokenRows& rows, int64_t column, int count) const {
    copy_tile<D, scan_chunk, threads>(tile,
                                      static_cast<const T*>(rows.data) + row_of(0) * rows.stride + column,
                                      rows.stride * shape.batch, valid(), count);
  }
  template <int threads, typename T>
  __device__ void copy_square(const SquareTile& tile, const void* from, int head) const {
    copy_tile<scan_chunk, scan_chunk, threads>(tile, static_cast<const T*>(from) + square(head), scan_chunk,
                                               scan_chunk, scan_chunk);
  }
};

/// The 16 tokens or channels k of accumulators, rounded, as A.
template <typename T, int N>
__device__ void as_operand(const ScanAccumulators<N>& x, int k, uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* const pair = &x[2 * k + i / 2][i % 2 * 2];
    a[i] = round_pair<T>(pair[0], pair[1]);
  }
}
/// A of 16 columns times two factors of each pair of columns.
template <typename T>
__device__ void scale_operand(const uint32_t (&a)[4], const float2& low, const float2& high,
                              uint32_t (&scaled)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = widen_pair<T>(a[i]), f = i < 2 ? low : high;
    scaled[i] = round_pair<T>(two.x * f.x, two.y * f.y);
  }
}

inline constexpr int state_tiles = key_channels / 8;

/// S^T, or a gradient of its shape, [16, K] of each warp, in registers from chunk to chunk; a block has a
/// head's values value0 ... of a sequence.
template <typename T, int warps>
struct WarpStates {
  static constexpr int threads = 32 * warps, values = 16 * warps;

  const ScanShape& shape;
  const int value0 = blockIdx.x * values, head = blockIdx.y, batch = blockIdx.z;
  const int group = head / (shape.heads / shape.groups);
  const int lane = threadIdx.x % 32, g = lane / 4, t2 = lane % 4 * 2, warp_row = threadIdx.x / 32 * 16;

  /// Calls f(its place in [B, N, K, V], the element).
  template <typename F>
  __device__ void for_each(ScanAccumulators<state_tiles>& state, F&& f) const {
#pragma unroll
    for (int n = 0; n < state_tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int value = value0 + warp_row + g + i / 2 * 8, key = 8 * n + t2 + i % 2;
        if (value < shape.head_dim && key < shape.state)
          f(((int64_t{batch} * shape.heads + head) * shape.state + key) * shape.head_dim + value,
            state[n][i]);
      }
    }
  }
  __device__ void read(const float* from, ScanAccumulators<state_tiles>& state) const {
    clear<state_tiles>(state);
    if (from != nullptr) for_each(state, [&](int64_t at, float& x) { x = from[at]; });
  }
  __device__ void write(ScanAccumulators<state_tiles>& state, float* to) const {
    if (to != nullptr) for_each(state, [&](int64_t at, const float& x) { to[at] = x; });
  }
  /// To T [B, chunks, N, V, K].
  __device__ void write_chunk(const ScanAccumulators<state_tiles>& state, const DeltaPlace& place,
                              void* states) const {
    if (states == nullptr) return;
    T* const to = static_cast<T*>(states) + place.state(head);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int value = value0 + warp_row + g + 8 * half;
#pragma unroll
      for (int n = 0; n < state_tiles; n += 2) {
        const bool valid = value < shape.head_dim && 8 * n + store_column() < shape.state;
        store_row<T>(to + value * int64_t{shape.state} + 8 * n, valid, state[n], state[n + 1], half);
      }
    }
  }
  /// Accumulators [16 values, 64 tokens] to rows [S, B, N V].
  __device__ void write_tokens(const ScanAccumulators<8>& x, const DeltaPlace& place, void* rows) const {
    if (rows == nullptr) return;
    const int64_t stride = int64_t{shape.heads} * shape.head_dim;
    T* const to = static_cast<T*>(rows) + int64_t{head} * shape.head_dim + value0 + warp_row;
    const bool inside = value0 + warp_row + store_column() < shape.head_dim;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const uint32_t low = movmatrix_trans(round_pair<T>(x[n][0], x[n][1]));
      const uint32_t high = movmatrix_trans(round_pair<T>(x[n][2], x[n][3]));
      const int token = 8 * n + g;
      store_words<T>(to + place.row_of(token) * stride, inside && token < place.valid(), low, high);
    }
  }

  /// state K^T or Q^T [16, tokens].
  __device__ void multiply_tokens(const ScanAccumulators<state_tiles>& state, const KeyTile& tile,
                                  ScanAccumulators<8>& out) const {
    clear<8>(out);
#pragma unroll
    for (int k = 0; k < state_tiles / 2; ++k) {
      uint32_t a[4], b[4];
      as_operand<T>(state, k, a);
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        tile.load_b(b, 8 * n, 16 * k);
        mma_pair<T>(out[n], out[n + 1], a, b);
      }
    }
  }
  /// state *= factor.
  __device__ void scale(ScanAccumulators<state_tiles>& state, float factor) const {
#pragma unroll
    for (int n = 0; n < state_tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state[n][i] *= factor;
    }
  }
  /// state += a K or Q, of the 16 tokens from `token` on.
  __device__ void add_tokens(const uint32_t (&a)[4], const KeyTile& tile, int token,
                             ScanAccumulators<state_tiles>& state) const {
#pragma unroll
    for (int n = 0; n < state_tiles; n += 2) {
      uint32_t b[4];
      tile.load_b_rows(b, token, 8 * n);
      mma_pair<T>(state[n], state[n + 1], a, b);
    }
  }
};

/// Tiles of a chunk in shared memory: q, k, [64, values] of v or dy, (I + A)^-1, P, 1 / |q|, 1 / |k|, tokens.
template <int values>
struct DeltaStage {
  static constexpr int values_at = 2 * key_tile_bytes,
                       squares_at = values_at + PaddedTile<values>::bytes(scan_chunk);
  static constexpr int lengths_at = squares_at + 2 * square_tile_bytes;
  static constexpr int tokens_at = lengths_at + 2 * 4 * scan_chunk;
  static constexpr int bytes = tokens_at + ChunkTokens::bytes;

  const KeyTile q, k;
  const PaddedTile<values> x;
  const SquareTile inverse, scores;
  const float *q_lengths, *k_lengths;
  const ChunkTokens tokens;

  __device__ explicit DeltaStage(const unsigned char* memory)
      : q{shared_address(memory)},
        k{q.address + key_tile_bytes},
        x{q.address + values_at},
        inverse{q.address + squares_at},
        scores{inverse.address + square_tile_bytes},
        q_lengths(reinterpret_cast<const float*>(memory + lengths_at)),
        k_lengths(q_lengths + scan_chunk),
        tokens(memory + tokens_at) {}

  struct Source {
    const TokenRows &qkv, &values_rows;
    int64_t values_column;
    const DeltaChunkParts& parts;
    const ScanTokens& tokens;
  };
  /// Starts copying the tiles of a chunk.
  template <typename T, int warps>
  __device__ static void copy(unsigned char* memory, const Source& from, const DeltaPlace& place,
                              const WarpStates<T, warps>& own) {
    constexpr int threads = 32 * warps;
    const DeltaStage to(memory);
    const ScanShape& shape = place.shape;
    place.copy<threads, T>(to.q, from.qkv, own.group * shape.state, shape.state);
    place.copy<threads, T>(to.k, from.qkv, place.keys() + own.group * shape.state, shape.state);
    place.copy<threads, T>(to.x, from.values_rows,
                           from.values_column + own.head * shape.head_dim + own.value0,
                           shape.head_dim - own.value0);
    place.copy_square<threads, T>(to.inverse, from.parts.inverse, own.head);
    place.copy_square<threads, T>(to.scores, from.parts.scores, own.head);
    constexpr int packs = scan_chunk / 4;
    if (const int thread = static_cast<int>(threadIdx.x); thread < 2 * packs) {
      const int64_t all = int64_t{shape.batch} * shape.groups * shape.chunks * scan_chunk;
      cp_async(to.q.address + lengths_at + 16 * thread,
               from.parts.lengths + thread / packs * all + place.lengths(own.group) + thread % packs * 4);
    }
    ChunkTokens::copy<threads>(to.q.address + tokens_at, from.tokens, place, own.head);
  }
};

/// Calls f(T{}, warps of a block): as few as fill the GPU, since all read the same keys.
template <typename F>
void with_delta_warps(const ScanShape& shape, F&& f) {
  const int64_t rows = int64_t{shape.batch} * shape.heads * ceil_div(shape.head_dim, 16);
  const int64_t per_sm = rows / sm_count();
  const auto of_type = [&](auto t) {
    if (shape.head_dim > 64 && per_sm >= 6) return f(t, std::integral_constant<int, 8>{});
    if (shape.head_dim > 32 && per_sm >= 3) return f(t, std::integral_constant<int, 4>{});
    f(t, std::integral_constant<int, 2>{});
  };
  if (shape.dtype == Dtype::bf16) return of_type(__nv_bfloat16{});
  of_type(__half{});
}

template <typename F>
void with_half_type(Dtype dtype, F&& f) {
  if (dtype == Dtype::bf16) return f(__nv_bfloat16{});
  f(__half{});
}

}  // namespace teratron::cuda
