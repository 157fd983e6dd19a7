// Scales of FP8 matrices by their history.
#include "teratron/nn/fp8_scaling.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace teratron {
namespace {

using Role = Fp8Scaling::Role;

at::Tensor filled(double value) {
  return at::full({16, 16}, value);
}

double scale_of(Fp8Scaling& scaling, Role role) {
  return scaling.state().at(0).values[static_cast<int64_t>(role)].item<double>();
}

/// Scales of an input whose largest magnitude was 2, 8, 4, 0, Inf and 1 in the steps before.
std::vector<double> scales(const Fp8Options& options) {
  Fp8Scaling scaling(options, at::kCPU);
  const int64_t layer = scaling.add_layer("w", 1);
  std::vector<double> all;
  for (const double amax : {2.0, 8.0, 4.0, 0.0, static_cast<double>(INFINITY), 1.0}) {
    scaling.cast(filled(amax / 2), {layer, Role::input}, {});
    scaling.cast(filled(-amax), {layer, Role::input}, {});
    scaling.cast(filled(1000), {layer, Role::input}, {.record_amax = false});
    scaling.update({});
    all.push_back(scale_of(scaling, Role::input));
  }
  return all;
}

using Scales = std::vector<double>;

TEST(Fp8Scaling, UsesTheMostRecentAmax) {
  EXPECT_EQ(scales({}), (Scales{224, 56, 112, 112, 112, 448}));
  EXPECT_EQ(scales({.history = 3}), (Scales{224, 56, 112, 112, 112, 448}));
}

TEST(Fp8Scaling, UsesTheMaxOfTheHistory) {
  EXPECT_EQ(scales({.history = 2, .most_recent = false}), (Scales{224, 56, 56, 112, 112, 448}));
  EXPECT_EQ(scales({.history = 3, .most_recent = false}), (Scales{224, 56, 56, 56, 112, 448}));
}

TEST(Fp8Scaling, AppliesTheMargin) {
  EXPECT_EQ(scales({.margin = 2}), (Scales{56, 14, 28, 28, 28, 112}));
}

TEST(Fp8Scaling, CastsGradientsToTheirFormat) {
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    Fp8Scaling scaling({.gradients = format}, at::kCPU);
    const int64_t layer = scaling.add_layer("w", 1);
    const auto bytes = scaling.cast(filled(4), {layer, Role::output_grad}, {}).rows.scalar_type();
    EXPECT_EQ(bytes, format == Fp8Format::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2);
    scaling.update({});
    EXPECT_EQ(scale_of(scaling, Role::output_grad), largest(format) / 4);
    EXPECT_EQ(scale_of(scaling, Role::weight), 1);  // none was seen
  }
}

TEST(Fp8Scaling, TensorwiseHasNoState) {
  Fp8Scaling scaling({.recipe = Fp8Options::Recipe::tensorwise}, at::kCPU);
  const int64_t layer = scaling.add_layer("w", 1);
  for (const double amax : {2.0, 16.0}) {
    EXPECT_EQ(scaling.cast(filled(amax), {layer, Role::input}, {}).scale_inv.item<double>(),
              static_cast<double>(static_cast<float>(amax / 448)));
    scaling.update({});
  }
  EXPECT_TRUE(scaling.state().empty());
}

}  // namespace
}  // namespace teratron
