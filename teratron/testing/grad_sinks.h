// Checks that kernels honor GradSink, on any device.
#pragma once

#include "teratron/kernels/attention/qkv.h"
#include "teratron/kernels/fp8/activation_fp8.h"
#include "teratron/kernels/gemm/gemm.h"
#include "teratron/kernels/norm/norm.h"
#include "teratron/kernels/pointwise/activation.h"
#include "teratron/testing/kernels.h"

namespace teratron {

/// `sum(sink)` returns the same bits in a given tensor (filled with NaN) as in a new one, accumulates on
/// request, and does not touch a tensor that cannot hold the result.
template <typename F>
void expect_grad_sink(const char* what, const F& sum) {
  SCOPED_TRACE(what);
  const at::Tensor expected = sum(GradSink{}), given = at::full_like(expected, std::nan("")),
                   before = at::rand_like(expected), accumulated = before.clone();
  EXPECT_TRUE(sum(GradSink{given}).is_same(given));
  EXPECT_TRUE(same_bits(given.cpu(), expected.cpu()));
  EXPECT_TRUE(sum(GradSink{accumulated, true}).is_same(accumulated));
  EXPECT_TRUE(same_bits(accumulated.cpu(), (before + expected).cpu()));
  for (const bool accumulate : {false, true}) {
    const at::Tensor unfit = at::zeros_like(expected, at::kHalf);
    EXPECT_TRUE(same_bits(sum(GradSink{unfit, accumulate}).cpu(), expected.cpu()));
    EXPECT_TRUE(at::equal(unfit, at::zeros_like(unfit)));
  }
}

struct SummedRows {
  int64_t rows, width;
  at::ScalarType type;
};

inline void expect_grad_sinks(at::Device device, const SummedRows& c) {
  SCOPED_TRACE(fmt::format("{} rows of {} {}", c.rows, c.width, at::toString(c.type)));
  const auto random = [&](at::IntArrayRef sizes) { return randn(sizes, c.type).to(device); };
  const at::Tensor x = random({c.rows, c.width}), dy = random({c.rows, c.width}), gain = random({c.width}),
                   shift = random({c.width}), gate_up = random({c.rows, 2 * c.width});
  expect_grad_sink("column sum", [&](const GradSink& sink) { return column_sum(x, sink); });
  expect_grad_sink("activation", [&](const GradSink& sink) {
    return activation_backward(dy, x, {}, Activation::gelu, {.dbias = sink}).dbias;
  });
  expect_grad_sink("gated activation", [&](const GradSink& sink) {
    return activation_backward(dy, gate_up, {}, Activation::swiglu, {.dbias = sink}).dbias;
  });
  const NormParameters p{gain, shift};
  const NormOutput out = norm_forward(x, {}, p, {});
  const auto backward = [&](const GradSink& dweight, const GradSink& dbias,
                            const std::optional<GradSink>& dx_sum = {}) {
    return norm_backward(dy, {}, {out.sum, out.mean, out.rstd}, {gain, shift, dweight, dbias, dx_sum}, {});
  };
  expect_grad_sink("gain", [&](const GradSink& sink) { return backward(sink, {}).dweight; });
  expect_grad_sink("shift", [&](const GradSink& sink) { return backward({}, sink).dbias; });
  expect_grad_sink("dx", [&](const GradSink& sink) { return backward({}, {}, sink).dx_sum; });
  const NormOptions rms{.kind = NormKind::rms};
  const NormOutput scaled = norm_forward(x, {}, {gain, {}}, rms);
  expect_grad_sink("gain of RMS", [&](const GradSink& sink) {
    return norm_backward(dy, {}, {scaled.sum, scaled.mean, scaled.rstd}, {gain, {}, sink}, rms).dweight;
  });
}

inline void expect_half_grad_sinks(at::Device device) {
  const auto random = [&](at::IntArrayRef sizes) { return randn(sizes, at::kBFloat16).to(device); };
  const at::Tensor x = random({32, 64}), dy = random({32, 64});
  const Fp8Scale scale = compute_fp8_scale(dy, Fp8Format::e5m2);
  expect_grad_sink("activation to fp8", [&](const GradSink& sink) {
    const Fp8Cast cast{.format = Fp8Format::e5m2, .scale = scale};
    return activation_backward_fp8(dy, x, Activation::gelu, cast, sink).dbias;
  });
  const QkvParts parts{random({4, 8, 2, 1, 32}), random({4, 8, 2, 32}), random({4, 8, 2, 32})};
  const at::Tensor angle = at::randn({9, 16}), positions = at::randint(9, {4, 8}, at::kLong);
  const QkvRotation rotation{
      {angle.cos().to(device), angle.sin().to(device)}, RopeStyle::half, positions.to(device)};
  for (const QkvRotation* r : {static_cast<const QkvRotation*>(nullptr), &rotation}) {
    expect_grad_sink("merge", [&](const GradSink& sink) { return merge_qkv(parts, r, sink).dbias; });
  }
  const int64_t rows = device.is_cuda() ? 3000 : 70;  // fused GEMM on Hopper
  const at::Tensor dy_of_product = random({rows, 64}), z = random({rows, 2048}), w = random({64, 2048});
  expect_grad_sink("activation in the product", [&](const GradSink& sink) {
    return linear_activation_backward({{}, sink}, {dy_of_product, w}, z, Activation::gelu).dbias;
  });
}

inline void expect_grad_sinks(at::Device device) {
  for (const at::ScalarType type : float_types) {
    for (const int64_t rows : {0, 3, 200}) {
      for (const int64_t width : {64, 77, 768}) expect_grad_sinks(device, {rows, width, type});
    }
  }
  expect_half_grad_sinks(device);
}

}  // namespace teratron
