#include "teratron/kernels/gemm/gemm_heuristic.h"

#include <array>

namespace teratron::cuda {
namespace {

/// By tile size. rate: throughput on an H200 under load for infinite k and no idle SM, relative to the best.
/// overhead, adding: cost of a tile in addition to its main loop, in bytes of k, without and with an addend.
/// The last three appear to overlap a tile's epilogue with the next main loop, but not the reading of the
/// addend.
struct Rate {
  int64_t tile_m, tile_n;
  double rate, overhead, adding;
};
constexpr std::array rates{
    Rate{128, 256, 1.0, 220, 260},    Rate{256, 128, 0.995, 220, 260}, Rate{128, 176, 1.0, 100, 1000},
    Rate{128, 168, 0.985, 100, 1000}, Rate{160, 128, 0.97, 80, 1000},
};

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Expected throughput relative to the best. SMs that idle in the last wave cost only half of their share,
/// since the others then have their power.
double expected(const Rate& r, const GemmSize& size, int sm_count) {
  const int64_t tiles = ceil_div(size.m, r.tile_m) * ceil_div(size.n, r.tile_n);
  const double used = static_cast<double>(size.m * size.n) / static_cast<double>(tiles * r.tile_m * r.tile_n);
  const double busy = static_cast<double>(tiles) / static_cast<double>(ceil_div(tiles, sm_count) * sm_count);
  const double overhead = (size.has_addend ? r.adding : r.overhead) / static_cast<double>(size.k_bytes);
  return r.rate / (1 + overhead) * used * (1 + busy) / 2;
}

bool fills(const Rate& r, const GemmSize& size, int sm_count) {
  return 10 * ceil_div(size.m, r.tile_m) * ceil_div(size.n, r.tile_n) >= 9 * sm_count;
}

}  // namespace

size_t select_gemm(std::span<const GemmCandidate> candidates, const GemmSize& size, int sm_count) {
  const GemmCandidate& first = candidates.front();
  size_t best = 0;
  double best_expected = 0;
  if (first.split_k > 1) return 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const GemmCandidate& p = candidates[i];
    if (p.algorithm != first.algorithm || p.split_k > 1) continue;
    for (const Rate& r : rates) {
      if (r.tile_m != p.tile_m || r.tile_n != p.tile_n || !fills(r, size, sm_count)) continue;
      const double e = expected(r, size, sm_count);
      if (e > best_expected) {
        best = i;
        best_expected = e;
      }
    }
  }
  return best;
}

}  // namespace teratron::cuda
