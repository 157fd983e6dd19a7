// The rotation of tiles of a projection of queries, keys and values.
#pragma once

#include "teratron/kernels/gemm/gemm_activation_tile.cuh"

namespace teratron::cuda::gemm_activation {

/// What a thread turns: a pack in the first half of a head's channels and its partner in the second, of every `step`-th row.
template <typename T>
struct Pairs {
  static constexpr int of_row = T::columns / 16, step = T::activators / of_row;
  int first_row, column;  // in the tile
  int pack;               // of the half
  bool there, turned;

  __device__ Pairs(const Params& p, const Tile& tile) {
    const int channels = p.turn.channels, of_head = channels / 16, pair = activator() % of_row;
    first_row = activator() / of_row;
    pack = pair % of_head;
    column = pair / of_head * channels + 8 * pack;
    const int head = static_cast<int>(tile.column + column) / channels;
    there = tile.column + column < p.shape.width;
    turned = head % p.turn.per_group < p.turn.per_group - 1;
  }
};

/// The angles of a thread's channels at the position of a row.
struct TileAngles {
  Pack<float, 4> cos[2], sin[2];

  __device__ void read(const GemmTurn& turn, int64_t row, int pack) {
    const uint32_t token = static_cast<uint32_t>(row), batch = static_cast<uint32_t>(turn.batch);
    const int64_t position = turn.positions[token / batch * turn.stride_s + token % batch * turn.stride_b];
    const int64_t place = position * (turn.channels / 2) + 8 * pack;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      cos[i] = load<4>(turn.cos + place + 4 * i);
      sin[i] = load<4>(turn.sin + place + 4 * i);
    }
  }
  __device__ void turn(float (&a)[8], float (&b)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float x = a[i], y = b[i], c = cos[i / 4].v[i % 4], s = sin[i / 4].v[i % 4];
      a[i] = x * c - y * s;
      b[i] = y * c + x * s;
    }
  }
};

/// `batch` rows of a thread at once, so that enough is under way.
template <typename T, int batch>
__device__ void turn_rows(const Params& p, const typename T::Shared& shared, const Tile& tile,
                          const Pairs<T>& mine, int row) {
  const int half = p.turn.channels / 2;
  TileAngles angles[batch];
  if (mine.turned) {
#pragma unroll
    for (int i = 0; i < batch; ++i) angles[i].read(p.turn, tile.row + row + i * mine.step, mine.pack);
  }
#pragma unroll
  for (int i = 0; i < batch; ++i) {
    const int at = row + i * mine.step;
    const SharedAddress place = shared_address(shared.product + at * T::pitch + mine.column);
    Pack<bf16, 8> low = load_shared<Pack<bf16, 8>>(place),
                  high = load_shared<Pack<bf16, 8>>(place + half * sizeof(bf16));
    if (mine.turned) {
      float a[8], b[8];
      widen(low, a);
      widen(high, b);
      angles[i].turn(a, b);
      low = round_to_pack<bf16>(a);
      high = round_to_pack<bf16>(b);
    }
    bf16* const to = p.out + (tile.row + at) * p.shape.width + tile.column + mine.column;
    store<8>(to, low);
    store<8>(to + half, high);
  }
}

template <typename T>
__device__ void turn_half(const Params& p, const typename T::Shared& shared, const Tile& tile, int half) {
  const Pairs<T> mine(p, tile);
  if (!mine.there) return;
  const int64_t left = p.shape.rows - tile.row;
  const int end = left < (half + 1) * half_rows ? static_cast<int>(left) : (half + 1) * half_rows;
  int row = half * half_rows + mine.first_row;
#pragma unroll 1
  for (; row + mine.step < end; row += 2 * mine.step) turn_rows<T, 2>(p, shared, tile, mine, row);
  if (row < end) turn_rows<T, 1>(p, shared, tile, mine, row);
}

template <typename T>
__device__ void turn_tiles(const Params& p, const typename T::Shared& shared) {
  Walk walk(p.shape, T::columns);
  while (walk.more()) {
    const Tile tile = walk.tile();
    walk.next();
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      sync_named(ready(half), group + T::activators);
      turn_half<T>(p, shared, tile, half);
      if (walk.more()) arrive_named(read(half), group + T::activators);
    }
  }
}

}  // namespace teratron::cuda::gemm_activation
