// linear_activation and its backward against f64 arithmetic on the same (rounded) inputs.
#pragma once

#include "teratron/kernels/gemm/gemm.h"
#include "teratron/testing/kernels.h"

namespace teratron {

/// Returns new tensors.
inline ActivationOutputs linear_activation(const LinearSum& sum, Activation activation, bool with_z) {
  const auto& [x, w, bias, added] = sum;
  const ActivationOutputs result{at::full({x.size(0), w.size(0) / parts_of(activation)}, NAN, x.options()),
                                 with_z ? at::full({x.size(0), w.size(0)}, NAN, x.options()) : at::Tensor()};
  linear_activation(result, sum, activation);
  return result;
}
inline ActivationGradients linear_activation_backward(const OutputProduct& product, const at::Tensor& z,
                                                      Activation activation,
                                                      const std::optional<GradSink>& sum) {
  const at::Tensor dz = at::full_like(z, NAN);
  ActivationGradients result = linear_activation_backward({dz, sum}, product, z, activation);
  EXPECT_TRUE(result.dx.is_same(dz));
  return result;
}

struct LinearActivationCase {
  at::Device device;
  at::ScalarType type;
  Activation activation;
  int64_t rows, width, k;
  int64_t added_k = 0;  // of the added product; 0: none
};

inline void check_linear_activation(const LinearActivationCase& c) {
  SCOPED_TRACE(fmt::format("{} activation {}, [{}, {}] to {}", at::toString(c.type),
                           static_cast<int>(c.activation), c.rows, c.k, c.width));
  const int64_t wide = parts_of(c.activation) * c.width;
  const double shrink = 1 / std::sqrt(static_cast<double>(c.k));
  const auto random = [&](at::IntArrayRef sizes) { return randn(sizes, c.type).to(c.device); };
  const at::Tensor x = random({c.rows, c.k}), w = random({wide, c.k}) * shrink, dy = random({c.rows, c.k}),
                   w2 = random({c.k, c.width}) * shrink;
  const double allowed = c.device.is_cuda() && c.type == at::kFloat ? 1e-5 : 1.2 * tolerance(c.type);
  for (const at::Tensor& bias : {at::Tensor(), random({wide})}) {
    const auto [y, z] = linear_activation({x, w, bias}, c.activation, true);
    const at::Tensor exact = at::matmul(f64(x), f64(w).t());
    EXPECT_LT(relative_error(z, bias.defined() ? exact + f64(bias) : exact), allowed);
    EXPECT_LT(relative_error(y, activation_forward(f64(z).cpu(), {}, c.activation)), allowed);
    const ActivationOutputs alone = linear_activation({x, w, bias}, c.activation, false);
    EXPECT_FALSE(alone.z.defined());
    EXPECT_TRUE(same_bits(alone.y, y));
    const at::Tensor da = at::matmul(f64(dy), f64(w2)).to(c.type);
    const ActivationGradients expected =
        activation_backward(f64(da).cpu(), f64(z).cpu(), {}, c.activation, {.dbias = GradSink{}});
    const at::Tensor place = at::full(
        {wide}, std::nan(""),
        expected.dbias.options().device(c.device).dtype(c.type == at::kDouble ? at::kDouble : at::kFloat));
    const ActivationGradients got = linear_activation_backward({dy, w2}, z, c.activation, GradSink{place});
    EXPECT_TRUE(got.dbias.is_same(place));
    EXPECT_LT(relative_error(got.dx, expected.dx), allowed);
    // Terms of both signs: the sums together are about as large as the terms.
    EXPECT_LT((f64(place).cpu() - expected.dbias).norm().item<double>(),
              allowed * expected.dx.norm().item<double>());
    const ActivationGradients again = linear_activation_backward({dy, w2}, z, c.activation, GradSink{});
    EXPECT_TRUE(same_bits(again.dx, got.dx) && same_bits(again.dbias, place));
    const ActivationGradients unsummed = linear_activation_backward({dy, w2}, z, c.activation, std::nullopt);
    EXPECT_TRUE(same_bits(unsummed.dx, got.dx));
    EXPECT_FALSE(unsummed.dbias.defined());
    const at::Tensor some_y = at::empty_like(y), some_z = at::empty_like(z), some_dz = at::empty_like(z);
    for (const auto& [begin, end] :
         {std::pair(c.rows * 2 / 3, c.rows), std::pair(int64_t{0}, c.rows * 2 / 3)}) {
      const auto part = [&, begin = begin, end = end](const at::Tensor& t) { return t.slice(0, begin, end); };
      linear_activation({part(some_y), part(some_z)}, {part(x), w, bias}, c.activation);
      linear_activation_backward({part(some_dz), std::nullopt}, {part(dy), w2}, part(z), c.activation);
    }
    EXPECT_LT(relative_error(some_z, z), allowed);
    EXPECT_LT(relative_error(some_y, y), allowed);
    EXPECT_LT(relative_error(some_dz, got.dx), allowed);
    const ActivationGradients anew =
        linear_activation_backward({{}, std::nullopt}, {dy, w2}, z, c.activation);
    EXPECT_TRUE(same_bits(anew.dx, got.dx));
  }
}

/// Whether two bf16 tensors differ nowhere by more than one ulp, or `small`.
inline bool alike(const at::Tensor& a, const at::Tensor& b, double small) {
  return ((f64(a) - f64(b)).abs() <= f64(b).abs() / 128 + small).all().item<bool>();
}

/// Operands are small integers, so sums are exact: every element of z must be its correctly rounded sum, and
/// the fused activation of z, or of the rounded product in the backward, must match the unfused kernel.
inline void check_every_element(const LinearActivationCase& c) {
  SCOPED_TRACE(
      fmt::format("activation {}, [{}, {}] to {}", static_cast<int>(c.activation), c.rows, c.k, c.width));
  const int64_t wide = parts_of(c.activation) * c.width;
  const auto random = [&](at::IntArrayRef sizes) {
    return (at::randint(-2, 3, sizes, at::kDouble) / 4).to(c.device, at::kBFloat16);
  };
  const at::Tensor x = random({c.rows, c.k}), w = random({wide, c.k}), bias = random({wide}),
                   dy = random({c.rows, c.k}), w2 = random({c.k, c.width});
  const auto added = [&](int64_t width) {
    return c.added_k ? AddedProduct{random({c.rows, c.added_k}), random({width, c.added_k})} : AddedProduct{};
  };
  const auto exact = [](const AddedProduct& product) {
    return product.defined() ? at::matmul(f64(product.x), f64(product.w).t()) : f64(at::zeros({}));
  };
  const AddedProduct to_z = added(wide);
  const auto [y, z] = linear_activation({x, w, bias, to_z}, c.activation, true);
  const at::Tensor sum = at::matmul(f64(x), f64(w).t()) + f64(bias) + exact(to_z).to(c.device);
  EXPECT_TRUE(same_bits(z, sum.to(at::kBFloat16)));
  EXPECT_TRUE(alike(y, activation_forward(z, {}, c.activation), 1e-6));
  const AddedProduct of_rows = added(c.width),
                     to_da = c.added_k ? AddedProduct{of_rows.x, of_rows.w.t().contiguous().t()} : of_rows;
  const ActivationGradients got = linear_activation_backward({dy, w2, to_da}, z, c.activation, GradSink{});
  const at::Tensor da = (at::matmul(f64(dy), f64(w2)) + exact(to_da).to(c.device)).to(at::kBFloat16);
  const ActivationGradients expected = activation_backward(da, z, {}, c.activation, {.dbias = GradSink{}});
  EXPECT_TRUE(alike(got.dx, expected.dx, 1e-5));
  EXPECT_LT(relative_error(got.dbias, expected.dbias), 1e-4);
}

}  // namespace teratron
