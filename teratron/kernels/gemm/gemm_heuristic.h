// Selects among the algorithms that cuBLASLt's heuristic proposes.
//
// cuBLASLt ranks its kernels by speed at full clock. In training a GPU soon hits its power limit, where the
// kernel that needs the least energy is the fastest. Kernels that appear to overlap one tile's epilogue with
// the next tile's main loop win if k is small and nothing is added. On compute capability 9.0 we select
// by rates measured there under load; on other devices, or if no measured kernel is proposed, the first.
// Measurements: docs/notes/gemm_heuristic.md.
#pragma once

#include <cstdint>
#include <span>

namespace teratron::cuda {

struct GemmCandidate {
  int algorithm;
  int64_t tile_m, tile_n;  // of out [m, n]
  int split_k;
};

struct GemmSize {
  int64_t m, n, k_bytes;    // k in bytes of operand a
  bool has_addend = false;  // a bias or a matrix is added to the product
};

/// Index into `candidates` (at least one), which are in cuBLASLt's order.
size_t select_gemm(std::span<const GemmCandidate> candidates, const GemmSize& size, int sm_count);

}  // namespace teratron::cuda
