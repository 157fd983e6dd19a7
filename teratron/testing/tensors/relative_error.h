#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace teratron {

/// ||a - b|| / ||b|| in f64, over all elements; no comparison with NaN passes.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  const at::Tensor x = a.detach().to(at::kCPU, at::kDouble), y = b.detach().to(at::kCPU, at::kDouble);
  const double scale = y.norm().item<double>();
  return (x - y).norm().item<double>() / (scale == 0 ? 1 : scale);
}

}  // namespace teratron
