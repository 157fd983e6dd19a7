// Tiles of products: operands into shared memory, and what is made of them there.
#pragma once

#include "teratron/kernels/gemm/gemm_activation_tile.cuh"

namespace teratron::cuda::gemm_activation {

template <typename T>
__device__ void copy_operands(const Params& p, typename T::Shared& shared) {
  constexpr uint16_t everywhere = (1 << blocks_in_cluster) - 1;
  const int block = static_cast<int>(block_in_cluster());  // brings its share of b to all
  Ring<T::stages> ring;
  for (Walk walk(p.shape, T::columns); walk.more(); walk.next()) {
    const Tile tile = walk.tile();
    const int row = static_cast<int>(tile.row), column = static_cast<int>(tile.column);
    for (int k = 0; k < p.shape.k; k += tile_k, ring.next()) {
      const int s = ring.stage();
      await(shared_address(&shared.taken[s]), ring.round() ^ 1);
      const SharedAddress arrived = shared_address(&shared.arrived[s]);
      arrive_expecting(arrived, sizeof shared.a[0] + sizeof shared.b[0]);
      copy_box(shared_address(shared.a[s]), {p.a, k, row}, arrived);
      if constexpr (T::backward) {
#pragma unroll
        for (int i = 0; i < T::tile_columns; i += blocks_in_cluster * row_values) {
          const int mine = i + block * row_values;
          if (mine >= T::tile_columns) break;
          copy_box_to(everywhere, shared_address(shared.b[s] + mine * tile_k), {p.b, column + mine, k},
                      arrived);
        }
      } else {
        const int of_half = block * (T::gated ? static_cast<int>(p.shape.width) : T::half_columns);
        copy_box_to(everywhere, shared_address(shared.b[s] + block * T::half_columns * tile_k),
                    {p.b, k, column + of_half}, arrived);
      }
    }
  }
}

/// Accumulators of a thread: of 64 rows of a tile, shared by a warpgroup.
template <typename T>
constexpr int accumulators = T::tile_columns / 2;

/// The product of one tile's 64 rows.
template <typename T>
__device__ void multiply(const Params& p, typename T::Shared& shared, int half, Ring<T::stages>& ring,
                         float (&d)[accumulators<T>]) {
  // For each 16 along k.
  constexpr uint32_t step_a = 16 * sizeof(bf16), step_b = T::backward ? 16 * 128 : step_a;
  const uint64_t first_a = operand_along_k(shared_address(shared.a[0] + half * half_rows * tile_k)),
                 first_b = T::backward ? operand_across_k(shared_address(shared.b[0]),
                                                          tile_k * row_values * sizeof(bf16))
                                       : operand_along_k(shared_address(shared.b[0]));
  const int thread = threadIdx.x % group;
  const int steps = (static_cast<int>(p.shape.k) + tile_k - 1) / tile_k;
  int last = 0;
  for (int step = 0; step < steps; ++step, ring.next()) {
    const int s = ring.stage();
    await(shared_address(&shared.arrived[s]), ring.round());
    const uint64_t a = operand_after(first_a, s * sizeof shared.a[0]),
                   b = operand_after(first_b, s * sizeof shared.b[0]);
    begin_products();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i)
      add_product<T::backward>(d, operand_after(a, i * step_a), operand_after(b, i * step_b), step + i > 0);
    end_product_group();
    await_product_groups<1>();
    if (step > 0 && thread < blocks_in_cluster) arrive_in_block(shared_address(&shared.taken[last]), thread);
    last = s;
  }
  await_product_groups<0>();
  products_are_in(d);
  if (thread < blocks_in_cluster) arrive_in_block(shared_address(&shared.taken[last]), thread);
}

__device__ inline uint32_t round_two(float a, float b) {
  const Pack<bf16, 2> two = round_to_pack<bf16>({a, b});
  return *reinterpret_cast<const uint32_t*>(&two);
}

/// The bias of the columns whose products a thread holds; 0 where there is none. Read before the products are made, so that
/// nobody waits for it.
template <typename T>
struct Bias {
  uint32_t two[T::tile_columns / 8] = {};

  __device__ void read(const Params& p, const Tile& tile) {
    if (p.bias == nullptr) return;
    const bf16* const from = p.bias + tile.column + 2 * (threadIdx.x % 4);
    const bf16* const up = from + p.shape.width - T::half_columns;
    const int there = static_cast<int>(min(p.shape.width - tile.column, int64_t{T::tile_columns}));
#pragma unroll
    for (int j = 0; j < T::tile_columns / 8; ++j) {
      const bool second = T::gated && 8 * j >= T::half_columns;
      if (8 * j - (second ? T::half_columns : 0) >= there) continue;
      two[j] = *reinterpret_cast<const uint32_t*>((second ? up : from) + 8 * j);
    }
  }
  __device__ void add_to(float (&d)[accumulators<T>]) const {
#pragma unroll
    for (int j = 0; j < T::tile_columns / 8; ++j) {
      float bias[2];
      widen(reinterpret_cast<const Pack<bf16, 2>&>(two[j]), bias);
#pragma unroll
      for (int c = 0; c < 4; ++c) d[4 * j + c] += bias[c % 2];
    }
  }
};

/// This warpgroup's 64 rows of the product, rounded, into shared memory.
template <typename T>
__device__ void leave_product(typename T::Shared& shared, int half, const float (&d)[accumulators<T>]) {
  const int warp = threadIdx.x % group / 32, lane = threadIdx.x % 32;
  const int row = half * half_rows + 16 * warp + lane % 16, column = 8 * (lane / 16);
  const SharedAddress place = shared_address(shared.product + row * T::pitch + column);
#pragma unroll
  for (int j = 0; j < T::tile_columns / 8; j += 2) {
    store_four_tiles(place + 8 * j * sizeof(bf16), round_two(d[4 * j], d[4 * j + 1]),
                     round_two(d[4 * j + 2], d[4 * j + 3]), round_two(d[4 * j + 4], d[4 * j + 5]),
                     round_two(d[4 * j + 6], d[4 * j + 7]));
  }
}

template <typename T>
__device__ void multiply_tiles(const Params& p, typename T::Shared& shared, int half) {
  Ring<T::stages> ring;
  bool first = true;
  for (Walk walk(p.shape, T::columns); walk.more(); walk.next()) {
    float d[accumulators<T>];
    if constexpr (T::backward) {
      multiply<T>(p, shared, half, ring, d);
    } else {
      Bias<T> bias;
      bias.read(p, walk.tile());
      multiply<T>(p, shared, half, ring, d);
      bias.add_to(d);
    }
    if (!first) sync_named(read(half), group + T::activators);
    leave_product<T>(shared, half, d);
    arrive_named(ready(half), group + T::activators);
    first = false;
  }
}

}  // namespace teratron::cuda::gemm_activation
