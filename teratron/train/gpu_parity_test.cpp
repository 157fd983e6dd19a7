// The model on a GPU against the same model on the CPU: loss and every gradient.
#include <gtest/gtest.h>

#include "teratron/device/device.h"
#include "teratron/testing/models.h"

namespace teratron {
namespace {

constexpr TestSizes gpu_sizes{.hidden = 64,
                              .ffn_hidden = 256,
                              .heads = 4,
                              .vocabulary = 501,
                              .padded_vocabulary = 512,
                              .positions = 64};

LossAndGrads run(const GPTConfig& config, at::Device device, at::ScalarType dtype) {
  return run_step({.config = config, .dtype = dtype, .device = device});
}

// Gradients smaller than `negligible` times the largest are compared on that scale: they are differences of
// larger numbers and carry their rounding.
struct Bound {
  double relative;
  double negligible = 1e-3;
};
constexpr Bound fp64{1e-11}, fp32{1e-5}, fp16{1e-2, 1e-2}, bf16{3e-2, 1e-2};

// Rounding moves values across the kink of ReLU, which changes their gradient from 0 to 1.
Bound half_precision(Bound bound, const GPTConfig& config) {
  return config.activation == Activation::relu ? Bound{3 * bound.relative, bound.negligible} : bound;
}

void expect_close(const TestVariant& variant, const LossAndGrads& actual, const LossAndGrads& expected,
                  Bound bound) {
  EXPECT_NEAR(actual.loss, expected.loss, bound.relative * expected.loss) << variant.name;
  double largest = 0.0;
  for (const auto& [name, gradient] : expected.gradients) {
    largest = std::max(largest, gradient.norm().item<double>());
  }
  for (const auto& [name, gradient] : expected.gradients) {
    const double error = (actual.gradients.at(name).to(at::kDouble) - gradient).norm().item<double>();
    EXPECT_LT(error, bound.relative * std::max(gradient.norm().item<double>(), bound.negligible * largest))
        << variant.name << " " << name;
  }
}

class GpuParity : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(GpuParity, MatchesCpuInFp64) {
  for (const TestVariant& variant : all_variants(gpu_sizes)) {
    expect_close(variant, run(variant.config, at::kCUDA, at::kDouble),
                 run(variant.config, at::kCPU, at::kDouble), fp64);
  }
}

TEST_F(GpuParity, MatchesFp64WithinRounding) {
  for (const TestVariant& variant : all_variants(gpu_sizes)) {
    const LossAndGrads exact = run(variant.config, at::kCPU, at::kDouble);
    expect_close(variant, run(variant.config, at::kCPU, at::kFloat), exact, fp32);
    expect_close(variant, run(variant.config, at::kCUDA, at::kFloat), exact, fp32);
    expect_close(variant, run(variant.config, at::kCUDA, at::kBFloat16), exact,
                 half_precision(bf16, variant.config));
    expect_close(variant, run(variant.config, at::kCUDA, at::kHalf), exact,
                 half_precision(fp16, variant.config));
  }
}

// Both round the same values to FP8, except where they have been rounded to different bf16 values.
TEST_F(GpuParity, MatchesCpuInFp8) {
  constexpr Bound fp8{0.12, 3e-2};
  std::vector<TestVariant> variants = family_variants(gpu_sizes);
  for (TestVariant variant : family_variants(gpu_sizes)) {
    variant.name += " with its output layer";
    variant.config.fp8_output_layer = true;
    variants.push_back(variant);
  }
  for (const TestVariant& variant : variants) {
    for (const Fp8Options& options :
         {Fp8Options{}, Fp8Options{.gradients = Fp8Format::e4m3}, Fp8Options{.weight_gradients = false}}) {
      const auto run_on = [&](at::Device device) {
        return run_step({.config = variant.config, .dtype = at::kBFloat16, .device = device, .fp8 = options});
      };
      LossAndGrads expected = run_on(at::kCPU);
      for (auto& [name, gradient] : expected.gradients) gradient = gradient.to(at::kDouble);
      expect_close(variant, run_on(at::kCUDA), expected, fp8);
    }
  }
}

}  // namespace
}  // namespace teratron
