#include "teratron/kernels/gemm/gemm_choice.h"

#include <array>

namespace teratron::cuda {
namespace {

/// What kernels with this tile reach on an H200 under load, were k endless and no multiprocessor idle, as a share of the
/// best's; and what a tile costs beside its products, in bytes of k: where the product is all, and where something is added.
/// The last three seem to write a tile while they multiply another, but not to read then what they add to it.
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

/// Share of the best rate. Multiprocessors that are idle at the end save half of what they would have given, as the others
/// then have their power.
double expected(const Rate& r, const GemmSize& size, int multiprocessors) {
  const int64_t tiles = ceil_div(size.m, r.tile_m) * ceil_div(size.n, r.tile_n);
  const double used = static_cast<double>(size.m * size.n) / static_cast<double>(tiles * r.tile_m * r.tile_n);
  const double busy =
      static_cast<double>(tiles) / static_cast<double>(ceil_div(tiles, multiprocessors) * multiprocessors);
  const double overhead = (size.adds ? r.adding : r.overhead) / static_cast<double>(size.k_bytes);
  return r.rate / (1 + overhead) * used * (1 + busy) / 2;
}

bool fills(const Rate& r, const GemmSize& size, int multiprocessors) {
  return 10 * ceil_div(size.m, r.tile_m) * ceil_div(size.n, r.tile_n) >= 9 * multiprocessors;
}

}  // namespace

size_t choose_gemm(std::span<const GemmProposal> proposals, const GemmSize& size, int multiprocessors) {
  const GemmProposal& first = proposals.front();
  size_t best = 0;
  double best_expected = 0;
  if (first.parts_of_k > 1) return 0;
  for (size_t i = 0; i < proposals.size(); ++i) {
    const GemmProposal& p = proposals[i];
    if (p.algorithm != first.algorithm || p.parts_of_k > 1) continue;
    for (const Rate& r : rates) {
      if (r.tile_m != p.tile_m || r.tile_n != p.tile_n || !fills(r, size, multiprocessors)) continue;
      const double e = expected(r, size, multiprocessors);
      if (e > best_expected) {
        best = i;
        best_expected = e;
      }
    }
  }
  return best;
}

}  // namespace teratron::cuda
