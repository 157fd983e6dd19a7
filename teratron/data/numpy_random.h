// numpy's legacy RandomState, draw for draw: shuffled indices must equal those of Megatron-LM.
//
// State: MT19937 seeded by init_genrand(seed), which is std::mt19937(seed). NEP 19 freezes the sequence of
// numpy.random.RandomState.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <utility>

namespace teratron {

class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed) : engine_(seed) {}

  /// One raw 32-bit output.
  uint32_t next_u32() { return static_cast<uint32_t>(engine_()); }
  /// Uniform in [0, 1) with 53 bits; consumes two outputs.
  double random_sample();
  /// Uniform integer in [0, last] by masking and rejection; consumes no output if last is 0.
  uint64_t interval(uint64_t last);
  /// Uniform integer in [low, high).
  int64_t randint(int64_t low, int64_t high);
  /// Index drawn with probabilities proportional to `p` (non-negative, not all zero).
  int64_t choice(std::span<const double> p);
  /// Number of trials up to the first success, >= 1; 0 < p < 1.
  int64_t geometric(double p);

  /// Fisher-Yates from the end, in place. `report` is called about every million values.
  template <typename T>
  void shuffle(std::span<T> values, const std::function<void(size_t left)>& report = nullptr) {
    constexpr size_t kAhead = 64, kReport = size_t{1} << 20;
    std::array<size_t, kAhead> drawn;  // ahead of the swaps, so that their values come from memory meanwhile
    for (size_t left = values.size(); left > 1;) {
      const size_t count = std::min(kAhead, left - 1);
      for (size_t i = 0; i < count; ++i) {
        drawn[i] = interval(left - 1 - i);
        __builtin_prefetch(&values[drawn[i]], 1);
      }
      for (size_t i = 0; i < count; ++i) std::swap(values[left - 1 - i], values[drawn[i]]);
      if (report && left / kReport != (left - count) / kReport) report(left - count);
      left -= count;
    }
  }

 private:
  std::mt19937 engine_;
};

}  // namespace teratron
