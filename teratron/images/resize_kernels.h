// Inner loops of a resize: weighted sums of bytes with 32-bit accumulators, rounded to bytes. With AVX2 or
// in plain C++, to equal results.
//
// Blocks of constant size are read and written, which may go kReach bytes over what is asked for.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace teratron {

inline constexpr int64_t kReach = 32;

/// Fixed point: `bits` after the point.
struct Rounding {
  int bits = 0;
  int32_t half() const { return 1 << (bits - 1); }
};

#ifdef __AVX2__

/// Four taps of an output pixel, each weight as high * 2^12 + low: the products of 16-bit numbers are the
/// fast ones. Pixels lie as r0 r1 g0 g1 b0 b1 - -, then those of taps 2 and 3.
class TapGroup {
 public:
  static constexpr int64_t kTaps = 4;

  explicit TapGroup(std::span<const int32_t, kTaps> weights) {
    for (size_t i = 0; i < 16; ++i) {
      const int32_t weight = i % 8 < 6 ? weights[i / 8 * 2 + i % 2] : 0;
      high_[i] = static_cast<int16_t>(weight >> kLowBits);
      low_[i] = static_cast<int16_t>(weight & ((1 << kLowBits) - 1));
    }
  }

  /// Weighted sum of the pixels at `rgb` with `groups`, as three bytes and one more.
  static void sum(const uint8_t* rgb, std::span<const TapGroup> groups, Rounding rounding, uint8_t* out) {
    const __m128i order = _mm_setr_epi8(0, 3, 1, 4, 2, 5, 5, 5, 6, 9, 7, 10, 8, 11, 11, 11);
    __m256i high = _mm256_setzero_si256(), low = _mm256_setzero_si256();
    for (const TapGroup& group : groups) {
      const __m128i bytes = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rgb)), order);
      const __m256i pixels = _mm256_cvtepu8_epi16(bytes);
      high = _mm256_add_epi32(high, _mm256_madd_epi16(pixels, load(group.high_)));
      low = _mm256_add_epi32(low, _mm256_madd_epi16(pixels, load(group.low_)));
      rgb += 3 * kTaps;
    }
    const __m256i both = _mm256_add_epi32(_mm256_slli_epi32(high, kLowBits), low);
    __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    sums =
        _mm_sra_epi32(_mm_add_epi32(sums, _mm_set1_epi32(rounding.half())), _mm_cvtsi32_si128(rounding.bits));
    const __m128i words = _mm_packs_epi32(sums, sums);
    const int32_t pixel = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
    std::memcpy(out, &pixel, sizeof pixel);
  }

 private:
  static constexpr int kLowBits = 12;
  using Words = std::array<int16_t, 16>;
  static __m256i load(const Words& words) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words.data()));
  }
  Words high_, low_;
};

/// Weighted sums of `weights.size()` rows that lie `stride` bytes apart, for 32 bytes.
inline void sum_rows(const uint8_t* source, int64_t stride, std::span<const int32_t> weights,
                     Rounding rounding, uint8_t* out) {
  const __m256i half = _mm256_set1_epi32(rounding.half());
  __m256i sums[4] = {half, half, half, half};
  for (const int32_t weight : weights) {
    for (size_t i = 0; i < 4; ++i) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(source + i * 8));
      const __m256i product = _mm256_mullo_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(weight));
      sums[i] = _mm256_add_epi32(sums[i], product);
    }
    source += stride;
  }
  const __m128i bits = _mm_cvtsi32_si128(rounding.bits);
  for (__m256i& sum : sums) sum = _mm256_sra_epi32(sum, bits);
  const __m256i words0 = _mm256_packs_epi32(sums[0], sums[1]), words1 = _mm256_packs_epi32(sums[2], sums[3]);
  // The packs work within halves of a register.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words0, words1), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
}

#else

class TapGroup {
 public:
  static constexpr int64_t kTaps = 1;

  explicit TapGroup(std::span<const int32_t, kTaps> weights) : weight_(weights[0]) {}

  static void sum(const uint8_t* rgb, std::span<const TapGroup> groups, Rounding rounding, uint8_t* out) {
    std::array<int32_t, 3> sums;
    sums.fill(rounding.half());
    for (const TapGroup& group : groups) {
      for (size_t c = 0; c < 3; ++c) sums[c] += rgb[c] * group.weight_;
      rgb += 3;
    }
    for (size_t c = 0; c < 3; ++c)
      out[c] = static_cast<uint8_t>(std::clamp(sums[c] >> rounding.bits, 0, 255));
  }

 private:
  int32_t weight_;
};

inline void sum_rows(const uint8_t* source, int64_t stride, std::span<const int32_t> weights,
                     Rounding rounding, uint8_t* out) {
  std::array<int32_t, kReach> sums;
  sums.fill(rounding.half());
  for (const int32_t weight : weights) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += source[i] * weight;
    source += stride;
  }
  for (size_t i = 0; i < sums.size(); ++i)
    out[i] = static_cast<uint8_t>(std::clamp(sums[i] >> rounding.bits, 0, 255));
}

#endif

}  // namespace teratron
