// FP8 on the CPU against the formats' definition, bit by bit, and products in fp64.
#include "teratron/kernels/fp8/fp8.h"

#include <cmath>

#include "teratron/kernels/fp8/activation_fp8.h"
#include "teratron/kernels/loss/cross_entropy.h"
#include "teratron/kernels/pointwise/activation.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

constexpr Fp8Format formats[] = {Fp8Format::e4m3, Fp8Format::e5m2};

/// A code's value by the format's definition: sign, exponent, mantissa; NaN if not finite.
double value_of(uint8_t code, Fp8Format format) {
  const int mantissa_bits = format == Fp8Format::e4m3 ? 3 : 2, bias = format == Fp8Format::e4m3 ? 7 : 15;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const int exponent = (code & 0x7F) >> mantissa_bits, all_ones = 0x7F >> mantissa_bits;
  const bool special = format == Fp8Format::e4m3 ? (code & 0x7F) == 0x7F : exponent == all_ones;
  if (special) return std::nan("");
  const double size = exponent == 0
                          ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                          : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  return code & 0x80 ? -size : size;
}

/// The nearest code, ties to even.
uint8_t nearest(double x, Fp8Format format) {
  int best = 0;
  double distance = INFINITY;
  for (int code = 0; code < 128; ++code) {
    const double d = std::abs(std::abs(x) - value_of(static_cast<uint8_t>(code), format));
    if (std::isnan(d) || d > distance || (d == distance && code % 2 == 1)) continue;
    best = code;
    distance = d;
  }
  return static_cast<uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

Fp8Scale scale_by(float scale) {
  return {at::full({1}, scale), at::full({1}, 1.0F / scale)};
}

at::Tensor values(const at::Tensor& fp8) {
  return fp8.to(at::kDouble);
}

TEST(Fp8, RoundsToNearest) {
  for (const Fp8Format format : formats) {
    // All magnitudes from below the smallest to beyond the largest, and midpoints of neighboring codes.
    std::vector<float> numbers;
    for (int code = 0; code < 126; ++code) {
      const double low = value_of(static_cast<uint8_t>(code), format);
      const double high = value_of(static_cast<uint8_t>(code + 1), format);
      if (std::isnan(high)) continue;
      for (const double x : {low, (low + high) / 2, low + (high - low) * 0.49, low + (high - low) * 0.51}) {
        numbers.push_back(static_cast<float>(x));
        numbers.push_back(static_cast<float>(-x));
      }
    }
    for (const double beyond : {1.0, 1.01, 1.2, 4.0, 1e3}) {
      numbers.push_back(static_cast<float>(largest(format) * beyond));
    }
    numbers.resize((numbers.size() + 255) / 256 * 256, 0.3F);
    const at::Tensor x = at::tensor(numbers).view({16, -1});
    const Fp8Matrix matrix = cast_to_fp8(x, {.format = format, .scale = scale_by(1)});
    const at::Tensor codes = matrix.rows.view(at::kByte).reshape({-1});
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto code = codes[static_cast<int64_t>(i)].item<uint8_t>();
      EXPECT_EQ(value_of(code, format), value_of(nearest(numbers[i], format), format)) << numbers[i];
    }
  }
}

TEST(Fp8, ColumnsAreTheTranspose) {
  const at::Tensor x = randn({32, 48}, at::kBFloat16);
  const Fp8Matrix matrix = cast_to_fp8(x, {.scale = scale_by(100)});
  EXPECT_TRUE(matrix.columns.is_contiguous());
  EXPECT_TRUE(at::equal(values(matrix.columns), values(matrix.rows).t()));
  const Fp8Matrix part = cast_to_fp8(x, {.scale = scale_by(100), .rows = false});
  EXPECT_FALSE(part.rows.defined());
  EXPECT_TRUE(at::equal(values(part.columns), values(matrix.columns)));
  EXPECT_FALSE(cast_to_fp8(x, {.scale = scale_by(100), .columns = false}).columns.defined());
}

TEST(Fp8, UpdatesAmax) {
  at::Tensor x = randn({16, 16});
  x[3][4] = -7;
  const at::Tensor amax = at::full({1}, 2.0F);
  cast_to_fp8(x, {.scale = scale_by(1), .amax = amax});
  EXPECT_EQ(amax.item<float>(), 7);
  x[3][4] = 0;
  cast_to_fp8(x, {.scale = scale_by(1), .amax = amax});
  EXPECT_EQ(amax.item<float>(), 7);
  x[0][0] = std::nanf("");
  const Fp8Matrix matrix = cast_to_fp8(x, {.scale = scale_by(1), .amax = amax});
  EXPECT_TRUE(std::isnan(amax.item<float>()));
  EXPECT_TRUE(std::isnan(values(matrix.rows)[0][0].item<double>()));
}

TEST(Fp8, DoesNotChangeItsInput) {
  const at::Tensor x = randn({16, 16}), before = x.clone();
  cast_to_fp8(x, {.scale = scale_by(3)});
  EXPECT_TRUE(at::equal(x, before));
}

TEST(Fp8, ScaleMapsAmaxToTheFormatsMaximum) {
  for (const Fp8Format format : formats) {
    at::Tensor x = randn({16, 32});
    x[1][1] = 20;
    const Fp8Scale scale = compute_fp8_scale(x, format);
    EXPECT_EQ(scale.scale.item<float>(), static_cast<float>(largest(format)) / 20);
    EXPECT_EQ(scale.scale_inv.item<float>(), 1.0F / scale.scale.item<float>());
    EXPECT_EQ(values(cast_to_fp8(x, {.format = format, .scale = scale}).rows).abs().max().item<double>(),
              largest(format));
    for (const float odd : {0.0F, INFINITY, std::nanf("")}) {
      EXPECT_EQ(compute_fp8_scale(at::full({16, 16}, odd), format).scale.item<float>(), 1) << odd;
    }
    EXPECT_EQ(compute_fp8_scale(at::full({16, 16}, 1e-44F), format).scale.item<double>(), largest_fp8_scale);
  }
}

TEST(Fp8, MatmulUsesQuantizedValues) {
  const at::Tensor a = randn({32, 64}), b = randn({48, 64}), bias = randn({48});
  const Fp8Matrix qa =
      cast_to_fp8(a, {.format = Fp8Format::e5m2, .scale = compute_fp8_scale(a, Fp8Format::e5m2)});
  const Fp8Matrix qb = cast_to_fp8(b, {.scale = compute_fp8_scale(b, Fp8Format::e4m3)});
  const Fp8Product product{.a = {qa.rows, qa.scale_inv}, .b = {qb.rows, qb.scale_inv}};
  const at::Tensor exact =
      at::matmul(values(qa.rows) * f64(qa.scale_inv), (values(qb.rows) * f64(qb.scale_inv)).t());
  EXPECT_LT(relative_error(fp8_matmul(product, {}, at::kFloat), exact), 1e-6);
  EXPECT_LT(relative_error(fp8_matmul(product, bias, at::kFloat), exact + f64(bias)), 1e-6);
  EXPECT_LT(relative_error(fp8_matmul(product, bias, at::kBFloat16), exact + f64(bias)), 6e-3);
  const at::Tensor residual = randn({32, 48}, at::kBFloat16);
  EXPECT_LT(relative_error(fp8_matmul_add(product, bias, residual), exact + f64(bias) + f64(residual)), 6e-3);
  EXPECT_LT(relative_error(fp8_matmul_add(product, {}, residual), exact + f64(residual)), 6e-3);
  const at::Tensor out = at::full({32, 48}, std::nanf(""));
  fp8_matmul_out(out, product);
  EXPECT_LT(relative_error(out, exact), 1e-6);
  const at::Tensor sum = randn({32, 48}), before = f64(sum);
  fp8_matmul_add_(sum, product);
  EXPECT_LT(relative_error(sum, before + exact), 1e-6);
  // And close to the product of the inputs: e4m3 has 4, e5m2 3 significant bits.
  EXPECT_LT(relative_error(exact, at::matmul(f64(a), f64(b).t())), 0.08);
}

// Within the formats' 4 and 3 significant bits; dbias bitwise equal to the unfused pass.
TEST(ActivationFp8, MatchesActivation) {
  for (const Activation kind : {Activation::gelu, Activation::relu, Activation::swiglu}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(fmt::format("kind {} {}", static_cast<int>(kind), at::toString(type)));
      const at::Tensor x = randn({48, 64}, type), y = activation_forward(f64(x), {}, kind);
      const at::Tensor amax = at::zeros({1});
      const Fp8Matrix forward = activation_forward_fp8(x, kind, {.scale = scale_by(16), .amax = amax});
      EXPECT_LT(relative_error(values(forward.rows) * f64(forward.scale_inv), y), 0.04);
      EXPECT_TRUE(at::equal(values(forward.columns), values(forward.rows).t()));
      EXPECT_EQ(amax.item<float>(), activation_forward(x, {}, kind).abs().max().item<float>());

      const at::Tensor dy = randn(y.sizes(), type);
      const ActivationGradients expected = activation_backward(dy, x, {}, kind, {.dbias = GradSink{}});
      for (const bool summed : {false, true}) {
        const Fp8ActivationGradients backward = activation_backward_fp8(
            dy, x, kind, {.format = Fp8Format::e5m2, .scale = scale_by(256), .amax = amax},
            summed ? std::optional<GradSink>(GradSink{}) : std::nullopt);
        EXPECT_LT(
            relative_error(values(backward.dx.rows) / 256, activation_backward(f64(dy), f64(x), {}, kind).dx),
            0.08);
        EXPECT_TRUE(at::equal(values(backward.dx.columns), values(backward.dx.rows).t()));
        ASSERT_EQ(backward.dbias.defined(), summed);
        if (summed) {
          EXPECT_TRUE(same_bits(backward.dbias, expected.dbias));
        }
      }
    }
  }
}

TEST(CrossEntropyFp8, MatchesGradient) {
  const VocabRange range{.first = 100, .columns = 60};
  const at::Tensor logits = randn({32, 64}, at::kBFloat16), exact = f64(logits.narrow(1, 0, 60)).softmax(1);
  const at::Tensor targets = at::randint(100, 160, {32}, at::kLong), scale = at::full({32}, 0.5F),
                   amax = at::zeros({1});
  const CrossEntropyStatistics s = cross_entropy_statistics(logits, targets, range);
  const Fp8Matrix gradient =
      cross_entropy_gradient_fp8(logits, {s.max, s.sum_exp, targets, scale}, range,
                                 {.format = Fp8Format::e5m2, .scale = scale_by(1024), .amax = amax});
  at::Tensor expected = at::zeros({32, 64}, at::kDouble);
  expected.narrow(1, 0, 60).copy_(exact).scatter_add_(1, (targets - 100).unsqueeze(1),
                                                      -at::ones({32, 1}, at::kDouble));
  expected *= 0.5;
  EXPECT_LT(relative_error(values(gradient.rows) / 1024, expected), 0.08);
  EXPECT_TRUE(at::equal(values(gradient.columns), values(gradient.rows).t()));
  EXPECT_NEAR(amax.item<float>(), expected.abs().max().item<double>(), 3e-3);
}

}  // namespace
}  // namespace teratron
