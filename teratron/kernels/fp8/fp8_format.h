// The eight-bit floating-point formats (Micikevicius et al. 2022), without torch.
#pragma once

#include <cstdint>

namespace teratron {

enum class Fp8Format : uint8_t {
  e4m3,  // largest finite value 448, no infinity: activations and weights
  e5m2   // largest finite value 57344: gradients
};

constexpr double largest(Fp8Format format) {
  return format == Fp8Format::e4m3 ? 448.0 : 57344.0;
}

/// Upper bound of scales, so that 1 / scale is a normal fp32.
inline constexpr double largest_fp8_scale = 0x1p126;

}  // namespace teratron
