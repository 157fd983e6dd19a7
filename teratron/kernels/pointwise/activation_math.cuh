// Activations and their derivatives on one element, in f32 or f64.
#pragma once

#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/pointwise/activation_kind.h"

namespace teratron::cuda {

/// Whether the activation is z s with a gate s = sigmoid(f(z)): f(z) = 2 sqrt(2/pi) (z + 0.044715 z^3) for
/// gelu's tanh form, f(z) = z for silu, 1.702 z for quick_gelu.
template <Activation kind>
inline constexpr bool has_gate =
    kind == Activation::gelu || kind == Activation::geglu || kind == Activation::silu ||
    kind == Activation::swiglu || kind == Activation::quick_gelu;

/// -f(z) / log(2), so that s = 1 / (1 + 2^x).
template <Activation kind, typename A>
__device__ A gate_exponent(A z) {
  if constexpr (kind == Activation::gelu || kind == Activation::geglu) {
    constexpr A a = A(-1.5957691216057308 * log2_e), b = A(0.044715);
    return z * (a + a * b * (z * z));
  } else if constexpr (kind == Activation::quick_gelu) {
    return z * A(-1.702 * log2_e);
  } else {
    return z * A(-log2_e);
  }
}

/// s, exact at both limits; 0 for activations without a gate.
template <Activation kind, typename A>
__device__ A gate_of(A z) {
  if constexpr (!has_gate<kind>) return A(0);
  return fast_rcp(A(1) + fast_exp2(gate_exponent<kind>(z)));
}

template <Activation kind, typename A>
__device__ A value_of(A z, A gate) {
  if constexpr (kind == Activation::gelu_erf) return A(0.5) * z * (A(1) + erf(z * A(0.7071067811865476)));
  if constexpr (kind == Activation::squared_relu) return z > A(0) ? z * z : A(0);
  if constexpr (kind == Activation::relu) return z > A(0) ? z : A(0);
  return z * gate;
}

/// Value and derivative together.
template <typename A>
struct ValueAndSlope {
  A value, slope;
};

template <Activation kind, typename A>
__device__ ValueAndSlope<A> slope_of(A z, A gate) {
  if constexpr (kind == Activation::gelu || kind == Activation::geglu) {
    constexpr A a = A(1.5957691216057308), b3 = A(3 * 0.044715);
    const A value = z * gate;
    return {value, gate + (value - value * gate) * (a + a * b3 * (z * z))};
  } else if constexpr (kind == Activation::gelu_erf) {
    const A cdf = A(0.5) * (A(1) + erf(z * A(0.7071067811865476)));
    return {z * cdf, cdf + z * A(0.3989422804014327) * exp(A(-0.5) * z * z)};
  } else if constexpr (kind == Activation::squared_relu) {
    const A positive = z > A(0) ? z : A(0);
    return {positive * positive, A(2) * positive};
  } else if constexpr (kind == Activation::relu) {
    return {z > A(0) ? z : A(0), z > A(0) ? A(1) : A(0)};
  } else {
    constexpr A slope = kind == Activation::quick_gelu ? A(1.702) : A(1);
    const A value = z * gate;
    return {value, gate + slope * (value - value * gate)};
  }
}

/// is_gated() as a constant for device code.
template <Activation kind>
inline constexpr bool gated_kind = is_gated(kind);

/// y of one element: from z, or from gate z and `up` if gated. `gate` is gate_of(z).
template <Activation kind, typename A>
__device__ A output_of(A z, A up, A gate) {
  const A y = value_of<kind>(z, gate);
  if constexpr (gated_kind<kind>) return y * up;
  return y;
}

template <typename A>
struct ActivationGradients {
  A z, up;  // up: only if gated
};

template <Activation kind, typename A>
__device__ ActivationGradients<A> gradients_of(A dy, A z, A up, A gate) {
  const auto [value, slope] = slope_of<kind>(z, gate);
  if constexpr (gated_kind<kind>) return {dy * slope * up, dy * value};
  return {dy * slope, A(0)};
}

/// Calls f with the kind as a compile-time constant; the branch is uniform over the grid.
template <bool gated, typename F>
__device__ void with_kind(Activation kind, F&& f) {
  if constexpr (gated) {
    if (kind == Activation::swiglu) return f(std::integral_constant<Activation, Activation::swiglu>{});
    return f(std::integral_constant<Activation, Activation::geglu>{});
  } else {
    switch (kind) {
      case Activation::gelu:
        return f(std::integral_constant<Activation, Activation::gelu>{});
      case Activation::gelu_erf:
        return f(std::integral_constant<Activation, Activation::gelu_erf>{});
      case Activation::squared_relu:
        return f(std::integral_constant<Activation, Activation::squared_relu>{});
      case Activation::relu:
        return f(std::integral_constant<Activation, Activation::relu>{});
      case Activation::quick_gelu:
        return f(std::integral_constant<Activation, Activation::quick_gelu>{});
      default:
        return f(std::integral_constant<Activation, Activation::silu>{});
    }
  }
}

}  // namespace teratron::cuda
