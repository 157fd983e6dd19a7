// Serial twins of whole trainers: every layout gives one rank's loss and every gradient.
#include <chrono>
#include <cstdlib>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/base/log.h"
#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"

namespace teratron {
namespace {

class LayoutTwins : public testing::TestWithParam<Layout> {};

TEST_P(LayoutTwins, GiveOneRanksLossAndGradients) {
  for (TestVariant variant : family_variants()) {
    variant.config.layers = 4;
    for (const bool documents : {false, true}) {
      SCOPED_TRACE(variant.name + (documents ? " with documents" : "") + ", " + to_string(GetParam()));
      const TestData data{.documents = documents};
      expect_same(gradients_of(variant.config, GetParam(), data, at::kDouble),
                  gradients_of(variant.config, {}, data, at::kDouble), 1e-12);
    }
    SCOPED_TRACE(variant.name + " in fp32, " + to_string(GetParam()));
    expect_same(gradients_of(variant.config, GetParam(), {}, at::kFloat),
                gradients_of(variant.config, {}, {}, at::kFloat), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, LayoutTwins,
    testing::Values(Layout{.tp = 2}, Layout{.tp = 2, .sequence_parallel = true}, Layout{.dp = 2},
                    Layout{.tp = 2, .microbatches = 2, .sequence_parallel = true}, Layout{.tp = 2, .dp = 2},
                    Layout{.tp = 2, .dp = 2, .sequence_parallel = true}, Layout{.dp = 4},
                    Layout{.pp = 2, .microbatches = 4}, Layout{.pp = 4, .microbatches = 8},
                    Layout{.pp = 2, .chunks = 2, .microbatches = 4},
                    Layout{.pp = 2, .stages = "Et||tt|tL", .group = 4, .microbatches = 8},
                    Layout{.pp = 4, .stages = "E|tt|tt|L", .microbatches = 2, .overlap_p2p = false},
                    every_axis, Layout{.tp = 2, .late = true},
                    Layout{.tp = 2, .sequence_parallel = true, .late = true},
                    Layout{.tp = 2, .sequence_parallel = true, .overlap_tp = false, .late = true},
                    Layout{.pp = 2, .chunks = 2, .microbatches = 4, .late = true},
                    Layout{.dp = 4, .sharded = true, .overlap_param_gather = true, .late = true}));

// Of random cases: two minutes, in the long tests five, or TERATRON_RANDOM_SECONDS.
int64_t random_seconds() {
  if (const char* chosen = std::getenv("TERATRON_RANDOM_SECONDS")) return std::atol(chosen);
  return std::getenv("TERATRON_LONG_TESTS") ? 300 : 120;
}

uint32_t random_seed() {
  const char* chosen = std::getenv("TERATRON_RANDOM_SEED");
  return chosen ? static_cast<uint32_t>(std::atol(chosen)) : std::random_device()();
}

TEST(RandomLayouts, GiveOneRanksLossAndGradients) {
  const uint32_t seed = random_seed();
  print("random layouts: TERATRON_RANDOM_SEED={}", seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(random_seconds());
  int64_t cases = 0;
  for (; std::chrono::steady_clock::now() < end && !testing::Test::HasFailure(); ++cases) {
    std::mt19937 random(seed + static_cast<uint32_t>(cases));
    const RandomCase c = random_case(random, 16);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed + cases, to_string(c.layout)));
    expect_twins(c.config, c.layout, c.data);
  }
  print("random layouts: {} cases", cases);
  EXPECT_GT(cases, 0);
}

}  // namespace
}  // namespace teratron
