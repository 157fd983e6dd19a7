// The three GEMMs of a linear layer against f64, on any device.
#pragma once

#include <array>

#include "teratron/kernels/gemm/gemm.h"
#include "teratron/testing/kernels.h"

namespace teratron {

struct LinearProductsCase {
  at::Device device;
  at::ScalarType type;
  int64_t tokens, inputs, outputs;
  int64_t gap = 0;  // elements between the rows of x, w and dy, half of them before the first
};

inline void check_linear_products(const LinearProductsCase& c) {
  SCOPED_TRACE(
      fmt::format("{} {}x{}x{}, gap {}", at::toString(c.type), c.tokens, c.inputs, c.outputs, c.gap));
  const auto options = at::device(c.device).dtype(c.type);
  const auto random = [&](int64_t rows, int64_t columns) {
    return at::randn({rows, columns + c.gap}, options).narrow(1, c.gap / 2, columns);
  };
  const at::Tensor x = random(c.tokens, c.inputs), w = random(c.outputs, c.inputs),
                   dy = random(c.tokens, c.outputs), bias = at::randn({c.outputs}, options);
  const double close = tolerance(c.type) + (c.device.is_cuda() && c.type == at::kFloat ? 1e-5 : 0);
  const auto empty = [&](int64_t rows, int64_t columns, at::ScalarType type) {
    return at::full({rows, columns}, NAN, options.dtype(type));
  };
  for (const at::Tensor& b : {at::Tensor(), bias}) {
    const at::Tensor exact =
        b.defined() ? at::matmul(f64(x), f64(w).t()) + f64(b) : at::matmul(f64(x), f64(w).t());
    const at::Tensor y = empty(c.tokens, c.outputs, c.type);
    EXPECT_LT(relative_error(linear_forward(x, w, b), exact), close);
    EXPECT_TRUE(linear_forward(x, w, b, y).is_same(y));
    EXPECT_LT(relative_error(y, exact), close);
  }
  const at::Tensor exact = at::matmul(f64(dy), f64(w)), dx = empty(c.tokens, c.inputs, c.type);
  EXPECT_LT(relative_error(linear_input_gradient(dy, w), exact), close);
  EXPECT_TRUE(linear_input_gradient(dy, w, dx).is_same(dx));
  EXPECT_LT(relative_error(dx, exact), close);
  const at::Tensor factor = at::full({1}, 0.375, options.dtype(at::kFloat));
  EXPECT_LT(relative_error(linear_input_gradient({dy, factor}, w), 0.375 * exact), 2 * close);
  const at::Tensor dw = at::matmul(f64(dy).t(), f64(x));
  for (const at::ScalarType type : {c.type, c.type == at::kDouble ? at::kDouble : at::kFloat}) {
    const at::Tensor sum = empty(c.outputs, c.inputs, type);
    linear_weight_gradient_(sum, dy, x, false);
    EXPECT_LT(relative_error(sum, dw), tolerance(type) + 1e-5);
    linear_weight_gradient_(sum, dy, x, true);
    EXPECT_LT(relative_error(sum, 2 * dw), tolerance(type) + 1e-5);
    linear_weight_gradient_(sum, {dy, factor}, x, true);
    EXPECT_LT(relative_error(sum, 2.375 * dw), 2 * tolerance(c.type) + 1e-5);
    linear_weight_gradient_(sum, {dy, factor}, x, false);
    EXPECT_LT(relative_error(sum, 0.375 * dw), 2 * tolerance(c.type) + 1e-5);
  }
}

/// Operands with unusual strides.
inline void check_strange_factors(const at::TensorOptions& options) {
  const at::Tensor w = at::randn({24, 16}, options), column = at::randn({16, 1}, options),
                   expanded = at::randn({1, 1}, options).expand({40, 24}), none = at::empty({0, 24}, options);
  const double close = tolerance(at::typeMetaToScalarType(options.dtype()));
  EXPECT_LT(relative_error(linear_forward(column.t(), w, {}), at::matmul(f64(column).t(), f64(w).t())),
            close);
  EXPECT_LT(relative_error(linear_input_gradient(expanded, w), at::matmul(f64(expanded), f64(w))), close);
  const at::Tensor sum = at::ones({24, 16}, options.dtype(at::kFloat));
  linear_weight_gradient_(sum, none, none.slice(1, 0, 16), true);
  EXPECT_TRUE((sum == 1).all().item<bool>());
  linear_weight_gradient_(sum, none, none.slice(1, 0, 16), false);
  EXPECT_TRUE((sum == 0).all().item<bool>());
  EXPECT_EQ(linear_forward(none, w.t().contiguous(), {}).numel(), 0);
}

}  // namespace teratron
