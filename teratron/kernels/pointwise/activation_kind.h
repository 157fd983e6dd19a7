// The activations; activation.h defines them.
#pragma once

#include <cstdint>

namespace teratron {

enum class Activation : uint8_t { gelu, gelu_erf, squared_relu, relu, silu, quick_gelu, swiglu, geglu };

/// Whether x holds gate|up.
constexpr bool is_gated(Activation activation) {
  return activation == Activation::swiglu || activation == Activation::geglu;
}
/// Width of x relative to y.
constexpr int64_t parts_of(Activation activation) {
  return is_gated(activation) ? 2 : 1;
}

}  // namespace teratron
