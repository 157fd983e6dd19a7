// Shared memory of delta_backward_cuda.cu: q and k, two squares, sums of two heads, stages of 64 values.
#pragma once

#include "teratron/kernels/delta/delta_gates_gradient.cuh"

namespace teratron::cuda {

inline constexpr int delta_backward_values = 64;
using ValueTile = PaddedTile<delta_backward_values>;
inline constexpr int value_tile_bytes = ValueTile::bytes(scan_chunk),
                     state_tile_bytes = KeyTile::bytes(delta_backward_values);
inline constexpr int stage_bytes = 3 * value_tile_bytes + 2 * state_tile_bytes + ChunkTokens::bytes;
inline constexpr int squares_at = 2 * key_tile_bytes, sums_at = squares_at + 2 * square_tile_bytes;
inline constexpr int stages_at = sums_at + 2 * static_cast<int>(sizeof(DeltaHeadSums));

/// 64 values of a head.
struct DeltaTiles {
  ValueTile dy, corrected, x;
  KeyTile state, dstate;  // [values, K]
  ChunkTokens tokens;

  __device__ explicit DeltaTiles(const unsigned char* memory)
      : dy{shared_address(memory)},
        corrected{dy.address + value_tile_bytes},
        x{corrected.address + value_tile_bytes},
        state{x.address + value_tile_bytes},
        dstate{state.address + state_tile_bytes},
        tokens(memory + 3 * value_tile_bytes + 2 * state_tile_bytes) {}
};

}  // namespace teratron::cuda
