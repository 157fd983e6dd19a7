// Variants of SwiGLU as SwiGLU of another input: with gates g and ups u, limit L, slope a, offset o,
//
//   (min(max(u, -L), L) + o) g' sigmoid(a g'), g' = min(g, L)   =   silu(a g') (min(max(u, -L), L) + o) / a
//
// gpt-oss has a = 1.702, L = 7, o = 1. Clamped values have no gradient. Plain tensor operations.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

struct GluVariant {
  double slope = 1.0;
  double offset = 0.0;
  double limit = 0.0;  // 0: none

  bool is_plain() const { return slope == 1.0 && offset == 0.0 && limit == 0.0; }
};

/// What SwiGLU of z [..., 2 F], gates|ups, is computed of; z itself for the plain one.
at::Tensor glu_input(const at::Tensor& z, const GluVariant& variant);
/// The gradient of z from that of glu_input(z).
at::Tensor glu_input_grad(const at::Tensor& d, const at::Tensor& z, const GluVariant& variant);

}  // namespace teratron
