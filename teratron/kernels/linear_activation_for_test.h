// A linear layer with an activation after it, and its gradient, against f64 arithmetic on the same (rounded) inputs.
#pragma once

#include "teratron/kernels/gemm.h"
#include "teratron/kernels/testing.h"

namespace teratron {

inline constexpr std::array activations{Activation::gelu, Activation::gelu_erf, Activation::squared_relu,
                                        Activation::relu, Activation::silu,     Activation::swiglu,
                                        Activation::geglu};

struct LinearActivationCase {
  at::Device device;
  at::ScalarType type;
  Activation activation;
  int64_t rows, width, k;
};

inline void check_linear_activation(const LinearActivationCase& c) {
  SCOPED_TRACE(fmt::format("{} activation {}, [{}, {}] to {}", at::toString(c.type),
                           static_cast<int>(c.activation), c.rows, c.k, c.width));
  const int64_t wide = is_gated(c.activation) ? 2 * c.width : c.width;
  const double shrink = 1 / std::sqrt(static_cast<double>(c.k));
  const auto random = [&](at::IntArrayRef sizes) { return randn(sizes, c.type).to(c.device); };
  const at::Tensor x = random({c.rows, c.k}), w = random({wide, c.k}) * shrink, dy = random({c.rows, c.k}),
                   w2 = random({c.k, c.width}) * shrink;
  const double allowed = c.device.is_cuda() && c.type == at::kFloat ? 1e-5 : 1.2 * tolerance(c.type);
  for (const at::Tensor& bias : {at::Tensor(), random({wide})}) {
    const auto [y, z] = linear_activation(x, w, bias, c.activation, true);
    const at::Tensor exact = at::matmul(f64(x), f64(w).t());
    EXPECT_LT(relative_error(z, bias.defined() ? exact + f64(bias) : exact), allowed);
    EXPECT_LT(relative_error(y, activation_forward(f64(z).cpu(), {}, c.activation)), allowed);
    const Activated alone = linear_activation(x, w, bias, c.activation, false);
    EXPECT_FALSE(alone.z.defined());
    EXPECT_TRUE(same_bits(alone.y, y));
    const at::Tensor da = at::matmul(f64(dy), f64(w2)).to(c.type);
    const SummedGradient expected = activation_backward_summed(f64(da).cpu(), f64(z).cpu(), {}, c.activation);
    const at::Tensor place = at::full({wide}, std::nan(""),
                                      expected.column_sum.options().device(c.device).dtype(
                                          c.type == at::kDouble ? at::kDouble : at::kFloat));
    const SummedGradient got = linear_activation_backward(dy, w2, z, c.activation, place);
    EXPECT_TRUE(got.column_sum.is_same(place));
    EXPECT_LT(relative_error(got.dx, expected.dx), allowed);
    // Roundings of da differ where sums over k do, and a sum over rows may be small beside its terms.
    EXPECT_LT((f64(place).cpu() - expected.column_sum).norm().item<double>() /
                  (expected.dx.norm().item<double>() * std::sqrt(static_cast<double>(c.rows))),
              allowed);
    const SummedGradient again = linear_activation_backward(dy, w2, z, c.activation, at::Tensor());
    EXPECT_TRUE(same_bits(again.dx, got.dx) && same_bits(again.column_sum, place));
    const SummedGradient unsummed = linear_activation_backward(dy, w2, z, c.activation, std::nullopt);
    EXPECT_TRUE(same_bits(unsummed.dx, got.dx));
    EXPECT_FALSE(unsummed.column_sum.defined());
  }
}

}  // namespace teratron
