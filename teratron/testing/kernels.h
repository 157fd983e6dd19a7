// Helpers of the tests of this layer.
#pragma once

#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace teratron {

inline const std::vector<at::ScalarType> float_types{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

/// ||a - b|| / ||b|| in f64, over all elements; NaN never passes a comparison with it.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  const at::Tensor x = a.detach().to(at::kCPU, at::kDouble), y = b.detach().to(at::kCPU, at::kDouble);
  const double scale = y.norm().item<double>();
  return (x - y).norm().item<double>() / (scale == 0 ? 1 : scale);
}

/// What rounding to the type costs, with room for a few operations.
inline double tolerance(at::ScalarType type) {
  if (type == at::kDouble) return 1e-12;
  if (type == at::kFloat) return 2e-6;
  return type == at::kHalf ? 8e-4 : 6e-3;
}

inline at::Tensor randn(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::randn(sizes, at::kDouble).to(type);
}

inline at::Tensor f64(const at::Tensor& x) {
  return x.defined() ? x.detach().to(at::kDouble) : x;
}

/// f64 leaf that collects a gradient.
inline at::Tensor leaf(const at::Tensor& x) {
  return f64(x).clone().requires_grad_();
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte));
}

#define EXPECT_CLOSE(actual, expected, type) \
  EXPECT_LT(relative_error(actual, expected), tolerance(type)) << at::toString(type)

}  // namespace teratron
