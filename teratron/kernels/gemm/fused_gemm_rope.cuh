// Epilogue: RoPE on a QKV projection.
#pragma once

#include "teratron/kernels/gemm/fused_gemm_tile.cuh"

namespace teratron::cuda::fused_gemm {

/// A thread rotates a pack in the first half of a head's channels with its partner in the second, in every
/// step-th row.
template <typename T>
struct Pairs {
  static constexpr int per_row = T::columns / 16, step = T::epilogue_threads / per_row;
  int first_row, column;  // in the tile
  int pack;               // in the half
  bool in_bounds, rotated;

  __device__ Pairs(const Params& p, const Tile& tile) {
    const int channels = p.rope.channels, packs = channels / 16, pair = epilogue_thread() % per_row;
    first_row = epilogue_thread() / per_row;
    pack = pair % packs;
    column = pair / packs * channels + 8 * pack;
    const int head = static_cast<int>(tile.column + column) / channels;
    in_bounds = tile.column + column < p.shape.width;
    rotated = head % p.rope.per_group < p.rope.per_group - 1;
  }
};

/// cos and sin of a thread's channels at a row's position.
struct RowAngles {
  Pack<float, 4> cos[2], sin[2];

  __device__ void read(const GemmRope& rope, int64_t row, int pack) {
    const uint32_t token = static_cast<uint32_t>(row), batch = static_cast<uint32_t>(rope.batch);
    const int64_t position = rope.positions[token / batch * rope.stride_s + token % batch * rope.stride_b];
    const int64_t place = position * (rope.channels / 2) + 8 * pack;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      cos[i] = load<4>(rope.cos + place + 4 * i);
      sin[i] = load<4>(rope.sin + place + 4 * i);
    }
  }
  __device__ void rotate(float (&a)[8], float (&b)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float x = a[i], y = b[i], c = cos[i / 4].v[i % 4], s = sin[i / 4].v[i % 4];
      a[i] = x * c - y * s;
      b[i] = y * c + x * s;
    }
  }
};

/// `batch` rows at a time, so that enough loads are in flight.
template <typename T, int batch>
__device__ void rotate_rows(const Params& p, const typename T::Shared& shared, const Tile& tile,
                            const Pairs<T>& pairs, int row) {
  const int half = p.rope.channels / 2;
  RowAngles angles[batch];
  if (pairs.rotated) {
#pragma unroll
    for (int i = 0; i < batch; ++i) angles[i].read(p.rope, tile.row + row + i * pairs.step, pairs.pack);
  }
#pragma unroll
  for (int i = 0; i < batch; ++i) {
    const int at = row + i * pairs.step;
    const SharedAddress place = shared_address(shared.product + at * T::pitch + pairs.column);
    Pack<bf16, 8> low = load_shared<Pack<bf16, 8>>(place),
                  high = load_shared<Pack<bf16, 8>>(place + half * sizeof(bf16));
    if (pairs.rotated) {
      float a[8], b[8];
      widen(low, a);
      widen(high, b);
      angles[i].rotate(a, b);
      low = round_to_pack<bf16>(a);
      high = round_to_pack<bf16>(b);
    }
    bf16* const to = p.out + (tile.row + at) * p.shape.width + tile.column + pairs.column;
    store<8>(to, low);
    store<8>(to + half, high);
  }
}

template <typename T>
__device__ void rotate_half_tile(const Params& p, const typename T::Shared& shared, const Tile& tile,
                                 int half) {
  const Pairs<T> pairs(p, tile);
  if (!pairs.in_bounds) return;
  const int64_t left = p.shape.rows - tile.row;
  const int end = left < (half + 1) * warpgroup_rows ? static_cast<int>(left) : (half + 1) * warpgroup_rows;
  int row = half * warpgroup_rows + pairs.first_row;
#pragma unroll 1
  for (; row + pairs.step < end; row += 2 * pairs.step) rotate_rows<T, 2>(p, shared, tile, pairs, row);
  if (row < end) rotate_rows<T, 1>(p, shared, tile, pairs, row);
}

template <typename T>
__device__ void rope_epilogue(const Params& p, const typename T::Shared& shared) {
  TileScheduler scheduler(p.shape, T::columns);
  while (scheduler.more()) {
    const Tile tile = scheduler.tile();
    scheduler.next();
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      named_barrier_sync(full_barrier(half), warpgroup + T::epilogue_threads);
      rotate_half_tile<T>(p, shared, tile, half);
      if (scheduler.more()) named_barrier_arrive(empty_barrier(half), warpgroup + T::epilogue_threads);
    }
  }
}

}  // namespace teratron::cuda::fused_gemm
