// Which of cuBLASLt's proposals a product takes.
//
// cuBLASLt ranks its kernels by their speed at full clock. In training a GPU soon reaches its power limit, and then the kernel
// that needs the least energy is the fastest; and kernels that seem to write one tile while they multiply the next win where k
// is short and nothing is added. On compute capability 9.0 a product takes the best proposal by rates measured there under load
// (docs/performance.md); elsewhere, and where none of the kernels measured is proposed, the first.
#pragma once

#include <cstdint>
#include <span>

namespace teratron::cuda {

struct GemmProposal {
  int algorithm;
  int64_t tile_m, tile_n;  // of out [m, n]
  int parts_of_k;          // computed apart and added
};

struct GemmSize {
  int64_t m, n, k_bytes;  // k in bytes of the first factor
  bool adds = false;      // a bias or another matrix to the product
};

/// Index into `proposals` (at least one), which come in cuBLASLt's order.
size_t choose_gemm(std::span<const GemmProposal> proposals, const GemmSize& size, int multiprocessors);

}  // namespace teratron::cuda
