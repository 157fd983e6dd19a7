// Producer warp and consumer warpgroups: TMA loads, and the wgmma main loop.
#pragma once

#include "teratron/kernels/gemm/fused_gemm_tile.cuh"

namespace teratron::cuda::fused_gemm {

template <typename T>
__device__ void load_operands(const Params& p, typename T::Shared& shared) {
  constexpr uint16_t all_blocks = (1 << blocks_per_cluster) - 1;
  const int block = static_cast<int>(cluster_rank());  // multicasts its share of b
  PipelineState<T::stages> pipeline;
  for (TileScheduler scheduler(p.shape, T::columns); scheduler.more(); scheduler.next()) {
    const Tile tile = scheduler.tile();
    const int row = static_cast<int>(tile.row), column = static_cast<int>(tile.column);
    const int steps = steps_of(p.shape.k), added_steps = steps_of(p.shape.added_k);
    for (int step = 0; step < steps + added_steps; ++step, pipeline.next()) {
      const bool added = step >= steps;
      const CUtensorMap &a = added ? p.added_a : p.a, &b = added ? p.added_b : p.b;
      const int k = (added ? step - steps : step) * tile_k;
      const int s = pipeline.stage();
      mbarrier_wait(shared_address(&shared.empty[s]), pipeline.phase() ^ 1);
      const SharedAddress full = shared_address(&shared.full[s]);
      mbarrier_arrive_expect_tx(full, sizeof shared.a[0] + sizeof shared.b[0]);
      tma_load(shared_address(shared.a[s]), Box{a, k, row}, full);
      if constexpr (T::backward) {
#pragma unroll
        for (int i = 0; i < T::tile_columns; i += blocks_per_cluster * swizzle_values) {
          const int offset = i + block * swizzle_values;
          if (offset >= T::tile_columns) break;
          tma_load_multicast(all_blocks, shared_address(shared.b[s] + offset * tile_k),
                             Box{b, column + offset, k}, full);
        }
      } else {
        const int part_offset = block * (T::gated ? static_cast<int>(p.shape.width) : T::half_columns);
        tma_load_multicast(all_blocks, shared_address(shared.b[s] + block * T::half_columns * tile_k),
                           Box{b, k, column + part_offset}, full);
      }
    }
  }
}

/// Accumulators per thread: a warpgroup holds 64 rows of a tile.
template <typename T>
constexpr int accumulators = T::tile_columns / 2;

/// The product of 64 rows of a tile.
template <typename T>
__device__ void mainloop(const Params& p, typename T::Shared& shared, int half,
                         PipelineState<T::stages>& pipeline, float (&d)[accumulators<T>]) {
  // Bytes per 16 values of k.
  constexpr uint32_t step_a = 16 * sizeof(bf16), step_b = T::backward ? 16 * 128 : step_a;
  const uint64_t first_a = k_major_descriptor(shared_address(shared.a[0] + half * warpgroup_rows * tile_k)),
                 first_b = T::backward ? mn_major_descriptor(shared_address(shared.b[0]),
                                                             tile_k * swizzle_values * sizeof(bf16))
                                       : k_major_descriptor(shared_address(shared.b[0]));
  const int thread = threadIdx.x % warpgroup;
  const int steps = steps_of(p.shape.k) + steps_of(p.shape.added_k);
  int last = 0;
  for (int step = 0; step < steps; ++step, pipeline.next()) {
    const int s = pipeline.stage();
    mbarrier_wait(shared_address(&shared.full[s]), pipeline.phase());
    const uint64_t a = advance_descriptor(first_a, s * sizeof shared.a[0]),
                   b = advance_descriptor(first_b, s * sizeof shared.b[0]);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i)
      wgmma<T::backward>(d, advance_descriptor(a, i * step_a), advance_descriptor(b, i * step_b),
                         step + i > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0 && thread < blocks_per_cluster)
      mbarrier_arrive_cluster(shared_address(&shared.empty[last]), thread);
    last = s;
  }
  wgmma_wait<0>();
  wgmma_fence_registers(d);
  if (thread < blocks_per_cluster) mbarrier_arrive_cluster(shared_address(&shared.empty[last]), thread);
}

__device__ inline uint32_t pack_bf16(float a, float b) {
  const Pack<bf16, 2> pair = round_to_pack<bf16>({a, b});
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// Bias of the columns of a thread's accumulators; 0 without a bias. Loaded before the main loop to hide the
/// latency.
template <typename T>
struct Bias {
  uint32_t pairs[T::tile_columns / 8] = {};

  __device__ void load(const Params& p, const Tile& tile) {
    if (p.bias == nullptr) return;
    const bf16* const from = p.bias + tile.column + 2 * (threadIdx.x % 4);
    const bf16* const up = from + p.shape.width - T::half_columns;
    const int columns = static_cast<int>(min(p.shape.width - tile.column, int64_t{T::tile_columns}));
#pragma unroll
    for (int j = 0; j < T::tile_columns / 8; ++j) {
      const bool second = T::gated && 8 * j >= T::half_columns;
      if (8 * j - (second ? T::half_columns : 0) >= columns) continue;
      pairs[j] = *reinterpret_cast<const uint32_t*>((second ? up : from) + 8 * j);
    }
  }
  __device__ void add_to(float (&d)[accumulators<T>]) const {
#pragma unroll
    for (int j = 0; j < T::tile_columns / 8; ++j) {
      float bias[2];
      widen(reinterpret_cast<const Pack<bf16, 2>&>(pairs[j]), bias);
#pragma unroll
      for (int c = 0; c < 4; ++c) d[4 * j + c] += bias[c % 2];
    }
  }
};

/// Rounds this warpgroup's 64 rows of the product and stores them in shared memory.
template <typename T>
__device__ void store_product(typename T::Shared& shared, int half, const float (&d)[accumulators<T>]) {
  const int warp = threadIdx.x % warpgroup / 32, lane = threadIdx.x % 32;
  const int row = half * warpgroup_rows + 16 * warp + lane % 16, column = 8 * (lane / 16);
  const SharedAddress to = shared_address(shared.product + row * T::pitch + column);
#pragma unroll
  for (int j = 0; j < T::tile_columns / 8; j += 2) {
    stmatrix_x4(to + 8 * j * sizeof(bf16), pack_bf16(d[4 * j], d[4 * j + 1]),
                pack_bf16(d[4 * j + 2], d[4 * j + 3]), pack_bf16(d[4 * j + 4], d[4 * j + 5]),
                pack_bf16(d[4 * j + 6], d[4 * j + 7]));
  }
}

template <typename T>
__device__ void compute_tiles(const Params& p, typename T::Shared& shared, int half) {
  PipelineState<T::stages> pipeline;
  bool first = true;
  for (TileScheduler scheduler(p.shape, T::columns); scheduler.more(); scheduler.next()) {
    float d[accumulators<T>];
    if constexpr (T::backward) {
      mainloop<T>(p, shared, half, pipeline, d);
    } else {
      Bias<T> bias;
      bias.load(p, scheduler.tile());
      mainloop<T>(p, shared, half, pipeline, d);
      bias.add_to(d);
    }
    if (!first) named_barrier_sync(empty_barrier(half), warpgroup + T::epilogue_threads);
    store_product<T>(shared, half, d);
    named_barrier_arrive(full_barrier(half), warpgroup + T::epilogue_threads);
    first = false;
  }
}

}  // namespace teratron::cuda::fused_gemm
