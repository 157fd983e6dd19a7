// Sums over rows go where they are wanted, on any device.
#pragma once

#include "teratron/kernels/attention/qkv.h"
#include "teratron/kernels/fp8/activation_fp8.h"
#include "teratron/kernels/gemm/gemm.h"
#include "teratron/kernels/norm/norm.h"
#include "teratron/kernels/pointwise/activation.h"
#include "teratron/testing/kernels.h"

namespace teratron {

/// `sum(into)` gives the same bits in a tensor of NaN as in one of its own, adds them where it is to, and leaves alone what cannot
/// hold them.
template <typename F>
void expect_sum_in_place(const char* what, const F& sum) {
  SCOPED_TRACE(what);
  const at::Tensor own = sum(SumInto{}), place = at::full_like(own, std::nan("")),
                   before = at::rand_like(own), added_to = before.clone();
  EXPECT_TRUE(sum(SumInto{place}).is_same(place));
  EXPECT_TRUE(same_bits(place.cpu(), own.cpu()));
  EXPECT_TRUE(sum(SumInto{added_to, true}).is_same(added_to));
  EXPECT_TRUE(same_bits(added_to.cpu(), (before + own).cpu()));
  for (const bool adds : {false, true}) {
    const at::Tensor narrow = at::zeros_like(own, at::kHalf);
    EXPECT_TRUE(same_bits(sum(SumInto{narrow, adds}).cpu(), own.cpu()));
    EXPECT_TRUE(at::equal(narrow, at::zeros_like(narrow)));
  }
}

struct SummedRows {
  int64_t rows, width;
  at::ScalarType type;
};

inline void expect_sums_where_wanted(at::Device device, const SummedRows& c) {
  SCOPED_TRACE(fmt::format("{} rows of {} {}", c.rows, c.width, at::toString(c.type)));
  const auto random = [&](at::IntArrayRef sizes) { return randn(sizes, c.type).to(device); };
  const at::Tensor x = random({c.rows, c.width}), dy = random({c.rows, c.width}), gain = random({c.width}),
                   shift = random({c.width}), gate_up = random({c.rows, 2 * c.width});
  expect_sum_in_place("column sum", [&](const SumInto& into) { return column_sum(x, into); });
  expect_sum_in_place("activation", [&](const SumInto& into) {
    return activation_backward_summed(dy, x, {}, Activation::gelu, {.dx = {}, .column_sum = into}).column_sum;
  });
  expect_sum_in_place("gated activation", [&](const SumInto& into) {
    return activation_backward_summed(dy, gate_up, {}, Activation::swiglu, {.column_sum = into}).column_sum;
  });
  const NormParameters p{gain, shift};
  const NormOutput out = norm_forward(x, {}, p, {});
  const auto backward = [&](const SumInto& dweight, const SumInto& dbias, const WantedSum& dx_sum = {}) {
    return norm_backward(dy, {}, {out.sum, out.mean, out.rstd}, {gain, shift, dweight, dbias, dx_sum}, {});
  };
  expect_sum_in_place("gain", [&](const SumInto& into) { return backward(into, {}).dweight; });
  expect_sum_in_place("shift", [&](const SumInto& into) { return backward({}, into).dbias; });
  expect_sum_in_place("dx", [&](const SumInto& into) { return backward({}, {}, into).dx_sum; });
  const NormOptions rms{.kind = NormKind::rms};
  const NormOutput scaled = norm_forward(x, {}, {gain, {}}, rms);
  expect_sum_in_place("gain of RMS", [&](const SumInto& into) {
    return norm_backward(dy, {}, {scaled.sum, scaled.mean, scaled.rstd}, {gain, {}, into}, rms).dweight;
  });
}

inline void expect_sums_of_halves_where_wanted(at::Device device) {
  const auto random = [&](at::IntArrayRef sizes) { return randn(sizes, at::kBFloat16).to(device); };
  const at::Tensor x = random({32, 64}), dy = random({32, 64});
  const Fp8Scale scale = fp8_scale_of(dy, Fp8Format::e5m2);
  expect_sum_in_place("activation to fp8", [&](const SumInto& into) {
    const Fp8Cast cast{.format = Fp8Format::e5m2, .scale = scale};
    return activation_backward_fp8(dy, x, Activation::gelu, cast, into).column_sum;
  });
  const QkvParts parts{random({4, 8, 2, 1, 32}), random({4, 8, 2, 32}), random({4, 8, 2, 32})};
  const at::Tensor angle = at::randn({9, 16}), positions = at::randint(9, {4, 8}, at::kLong);
  const QkvRotation rotation{
      {angle.cos().to(device), angle.sin().to(device)}, RopeStyle::half, positions.to(device)};
  for (const QkvRotation* turned : {static_cast<const QkvRotation*>(nullptr), &rotation}) {
    expect_sum_in_place("merge",
                        [&](const SumInto& into) { return merge_qkv(parts, turned, into).column_sum; });
  }
  const int64_t rows = device.is_cuda() ? 3000 : 70;  // on Hopper products leave it
  const at::Tensor dy_of_product = random({rows, 64}), z = random({rows, 2048}), w = random({64, 2048});
  expect_sum_in_place("activation in the product", [&](const SumInto& into) {
    return linear_activation_backward({{}, into}, dy_of_product, w, z, Activation::gelu).column_sum;
  });
}

inline void expect_sums_where_wanted(at::Device device) {
  for (const at::ScalarType type : float_types) {
    for (const int64_t rows : {0, 3, 200}) {
      for (const int64_t width : {64, 77, 768}) expect_sums_where_wanted(device, {rows, width, type});
    }
  }
  expect_sums_of_halves_where_wanted(device);
}

}  // namespace teratron
