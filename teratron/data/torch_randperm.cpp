#include "teratron/data/torch_randperm.h"

#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {

std::vector<int64_t> torch_randperm(int64_t n, uint64_t seed) {
  TERATRON_ASSERT(n >= 0, "n = {}", n);
  std::mt19937 engine(static_cast<uint32_t>(seed));
  std::vector<int64_t> values(static_cast<size_t>(n));
  if (n < std::numeric_limits<uint32_t>::max() / 20) {
    std::iota(values.begin(), values.end(), 0);
    for (int64_t i = 0; i + 1 < n; ++i) {
      const int64_t j = i + static_cast<int64_t>(engine() % static_cast<uint64_t>(n - i));
      std::swap(values[i], values[j]);
    }
    return values;
  }
  // Long permutations: inside-out Fisher-Yates with 64-bit draws.
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t high = engine();
    const uint64_t draw = (high << 32) | engine();
    const auto j = static_cast<int64_t>(draw % static_cast<uint64_t>(i + 1));
    values[i] = values[j];
    values[j] = i;
  }
  return values;
}

}  // namespace teratron
