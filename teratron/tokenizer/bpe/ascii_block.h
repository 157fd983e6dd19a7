// SIMD character classes of 64 bytes: one bit per byte, lowest bit first.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace teratron {

/// Bytes above 0x7f are only `wide`. Bytes of no class are other ASCII characters.
struct AsciiBlock {
  static constexpr int kBytes = 64;
  uint64_t letter = 0, number = 0, whitespace = 0;  // [A-Za-z], [0-9], \s
  uint64_t space = 0, apostrophe = 0;               // ' ' and '\''
  uint64_t wide = 0;

  /// Reads 64 bytes at `p`.
  static AsciiBlock load(const char* p) {
    AsciiBlock block;
    for (int at = 0; at < kBytes; at += kVector) {
      Bytes bytes;
      std::memcpy(&bytes, p + at, kVector);
      const auto within = [&](const Bytes& value, uint8_t first, uint8_t last) {
        return mask(Bytes(value - first <= uint8_t(last - first))) << at;
      };
      block.letter |= within(bytes | 0x20, 'a', 'z');
      block.number |= within(bytes, '0', '9');
      block.whitespace |= within(bytes, '\t', '\r');
      block.space |= within(bytes, ' ', ' ');
      block.apostrophe |= within(bytes, '\'', '\'');
      block.wide |= mask(bytes) << at;
    }
    block.whitespace |= block.space;
    return block;
  }

 private:
  static constexpr int kVector = 32;
  using Bytes = uint8_t __attribute__((vector_size(kVector)));

  /// The top bit of each byte.
#ifdef __AVX2__
  static uint64_t mask(const Bytes& bytes) {
    return static_cast<uint32_t>(_mm256_movemask_epi8(reinterpret_cast<__m256i>(bytes)));
  }
#else
  static uint64_t mask(const Bytes& bytes) {
    uint64_t bits = 0;
    for (int i = 0; i < kVector; ++i) bits |= uint64_t{bytes[i]} >> 7 << i;
    return bits;
  }
#endif
};

}  // namespace teratron
