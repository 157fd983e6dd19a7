#include "teratron/data/numpy_random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "teratron/base/error.h"

namespace teratron {

double NumpyRandom::random_sample() {
  const uint32_t high = next_u32() >> 5;
  const uint32_t low = next_u32() >> 6;
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

uint64_t NumpyRandom::interval(uint64_t last) {
  if (last == 0) return 0;
  const uint64_t mask = ~uint64_t{0} >> std::countl_zero(last);
  while (true) {
    uint64_t value = next_u32();
    if (last > 0xffffffffu) value = (value << 32) | next_u32();
    value &= mask;
    if (value <= last) return value;
  }
}

int64_t NumpyRandom::randint(int64_t low, int64_t high) {
  TERATRON_ASSERT(low < high, "randint({}, {})", low, high);
  return low + static_cast<int64_t>(interval(static_cast<uint64_t>(high) - static_cast<uint64_t>(low) - 1));
}

int64_t NumpyRandom::choice(std::span<const double> p) {
  TERATRON_ASSERT(!p.empty());
  std::vector<double> cumulative(p.size());
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) cumulative[i] = sum += p[i];
  for (double& value : cumulative) value /= sum;
  const double uniform = random_sample();
  return std::upper_bound(cumulative.begin(), cumulative.end(), uniform) - cumulative.begin();
}

int64_t NumpyRandom::geometric(double p) {
  TERATRON_ASSERT(p > 0 && p < 1, "geometric({})", p);
  if (p < 0.333333333333333333333333) {
    return static_cast<int64_t>(std::ceil(std::log1p(-random_sample()) / std::log(1 - p)));
  }
  // For large p numpy searches the cumulative distribution.
  const double uniform = random_sample();
  int64_t trials = 1;
  double term = p;
  double sum = p;
  while (uniform > sum) {
    term *= 1 - p;
    sum += term;
    ++trials;
  }
  return trials;
}

}  // namespace teratron
