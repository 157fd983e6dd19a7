// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011). A value depends only on (seed, tensor id, element index in the *global* tensor), not
// on the sharding, thread, device or order of draws. Initialization and dropout are therefore independent of
// the layout.
//
//   element e of tensor t under seed k:  word e % 4 of philox(key = k, counter = {e / 4, t})
//   uniform:  (word + 0.5) / 2^32 rounded to float, in (0, 1]
//   normal:   Box-Muller on the words u, v of the pair {e, e ^ 1}: r = sqrt(-2 ln u), r cos(2 pi v) for the
//             even element, r sin(2 pi v) for the odd one; |value| < 6.77
//
// The functions run on host and device with bitwise identical results: log, sin and cos are polynomials with
// explicit float FMAs (error below 3e-7).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define TERATRON_HOST_DEVICE __host__ __device__ inline
#else
#define TERATRON_HOST_DEVICE inline
#endif

namespace teratron {

/// The four 32-bit words of a draw.
struct PhiloxWords {
  uint32_t word[4];
};

/// Random stream: the run's seed and a tensor id that is unique within the run.
struct RandomKey {
  uint64_t seed = 0;
  uint64_t tensor = 0;
};

/// Words of elements 4 * block .. 4 * block + 3 of a stream. Fewer than 10 rounds give another stream; 7 are
/// the fewest that pass the tests of the paper.
template <int rounds = 10>
TERATRON_HOST_DEVICE PhiloxWords philox(const RandomKey& key, uint64_t block) {
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = static_cast<uint32_t>(key.tensor), c3 = static_cast<uint32_t>(key.tensor >> 32);
  for (int round = 0; round < rounds; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Uniform in (0, 1].
TERATRON_HOST_DEVICE float uniform_from(uint32_t word) {
  return fmaf(static_cast<float>(word), 0x1p-32f, 0x1p-33f);
}

struct NormalPair {
  float even;
  float odd;
};

namespace detail {

/// ln(u) for u in (0, 1]: u = m 2^e with m in [sqrt(1/2), sqrt(2)), ln(m) by the artanh series.
TERATRON_HOST_DEVICE float portable_log(float u) {
  uint32_t bits;
  memcpy(&bits, &u, sizeof bits);
  const uint32_t shifted = bits - 0x3F3504F3u;  // sqrt(1/2) as bits
  const int exponent = static_cast<int>(shifted) >> 23;
  bits = (shifted & 0x007FFFFFu) + 0x3F3504F3u;
  float m;
  memcpy(&m, &bits, sizeof m);
  const float s = (m - 1.0f) / (m + 1.0f);
  const float s2 = s * s;
  float series = fmaf(s2, 1.0f / 9, 1.0f / 7);
  series = fmaf(series, s2, 1.0f / 5);
  series = fmaf(series, s2, 1.0f / 3);
  series = fmaf(series, s2, 1.0f);
  return fmaf(static_cast<float>(exponent), 0.693147181f, series * (s + s));
}

}  // namespace detail

/// Two independent standard normal values (Box-Muller) from radius word u and angle word v.
TERATRON_HOST_DEVICE NormalPair normal_from(uint32_t u, uint32_t v) {
  const float radius = sqrtf(-2.0f * detail::portable_log(uniform_from(u)));
  // Angle = quarter * pi/2 + x with x in [-pi/4, pi/4): exact reduction in integers.
  const uint32_t quarter = (v + 0x20000000u) >> 30;
  const float x = static_cast<float>(static_cast<int32_t>(v - (quarter << 30))) * (1.57079633f * 0x1p-30f);
  const float x2 = x * x;
  float sine = fmaf(x2, 1.0f / 362880, -1.0f / 5040);
  sine = fmaf(sine, x2, 1.0f / 120);
  sine = fmaf(sine, x2, -1.0f / 6);
  sine = fmaf(sine, x2, 1.0f) * x;
  float cosine = fmaf(x2, -1.0f / 3628800, 1.0f / 40320);
  cosine = fmaf(cosine, x2, -1.0f / 720);
  cosine = fmaf(cosine, x2, 1.0f / 24);
  cosine = fmaf(cosine, x2, -0.5f);
  cosine = fmaf(cosine, x2, 1.0f);
  const float c = (quarter & 1) ? sine : cosine;
  const float s = (quarter & 1) ? cosine : sine;
  return {radius * ((quarter == 1 || quarter == 2) ? -c : c), radius * ((quarter & 2) ? -s : s)};
}

/// Normal values of the four elements of a block.
struct NormalQuad {
  float value[4];
};
TERATRON_HOST_DEVICE NormalQuad normal_block(const RandomKey& key, uint64_t block) {
  const PhiloxWords w = philox(key, block);
  const NormalPair low = normal_from(w.word[0], w.word[1]);
  const NormalPair high = normal_from(w.word[2], w.word[3]);
  return {{low.even, low.odd, high.even, high.odd}};
}

}  // namespace teratron
