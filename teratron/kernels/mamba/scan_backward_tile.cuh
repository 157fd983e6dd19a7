// Shared memory of scan_backward_cuda.cu.
#pragma once

#include "teratron/kernels/mamba/scan_steps_gradient.cuh"

namespace teratron::cuda {

inline constexpr int scan_backward_heads = 8;  // of a block

template <int P>
struct BackwardTile {
  static constexpr int stages = P <= 80 ? 2 : 1;
  static constexpr int bc_bytes = PaddedTile<max_scan_state>::bytes(scan_chunk),
                       scores_bytes = PaddedTile<scan_chunk>::bytes(scan_chunk);
  static constexpr int x_bytes = PaddedTile<P>::bytes(scan_chunk),
                       state_bytes = PaddedTile<max_scan_state>::bytes(P);
  static constexpr int stage_bytes = 2 * x_bytes + 2 * state_bytes + ChunkTokens::bytes;
  static constexpr int sums_at = 2 * bc_bytes + scores_bytes;
  static constexpr int stages_at = sums_at + 2 * static_cast<int>(sizeof(ScanHeadSums));
  static constexpr int shared_bytes = stages_at + stages * stage_bytes;
};

/// One head's tiles.
template <int P>
struct HeadTiles {
  using Tile = BackwardTile<P>;
  PaddedTile<P> x, dy;
  PaddedTile<max_scan_state> state, dstate;
  ChunkTokens tokens;

  __device__ explicit HeadTiles(const unsigned char* memory)
      : x{shared_address(memory)},
        dy{x.address + Tile::x_bytes},
        state{dy.address + Tile::x_bytes},
        dstate{state.address + Tile::state_bytes},
        tokens(memory + 2 * Tile::x_bytes + 2 * Tile::state_bytes) {}
};

}  // namespace teratron::cuda
