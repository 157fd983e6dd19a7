// The engine in every layout against one rank: loss and every gradient.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/testing/bert_models.h"
#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"
#include "teratron/testing/t5_models.h"

namespace teratron {
namespace {

class LayoutGradients : public testing::TestWithParam<Layout> {};

TEST_P(LayoutGradients, MatchOneRank) {
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
    Layouts, LayoutGradients,
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

// Packed rows in the layout, against rows with padding on one rank.
void expect_packed_twins(const BertConfig& config, const Layout& layout) {
  expect_same(gradients_of(packed_bert_model(config, layout.tp), layout, at::kDouble),
              gradients_of(bert_model(config), {}, at::kDouble), 1e-11);
}

TEST(RandomLayouts, MatchOneRank) {
  RandomCases cases({.share = 0.8, .minimum = 10});
  while (std::optional<std::mt19937> random = cases.next()) {
    if ((*random)() % 4 == 0) {
      const BertConfig config = random_bert_config(*random);
      const Layout layout = random_layout(config, *random, 16);
      SCOPED_TRACE(fmt::format("seed {}: BERT, {}", cases.seed(), to_string(layout)));
      expect_twins(bert_model(config), layout);
      if ((*random)() % 2 == 0) expect_packed_twins(config, layout);
      continue;
    }
    if ((*random)() % 3 == 0) {
      const T5Config config = random_t5_config(*random);
      const Layout layout = random_t5_layout(config, *random, 16);
      SCOPED_TRACE(fmt::format("seed {}: T5, {}", cases.seed(), to_string(layout)));
      expect_twins(t5_model(config), layout);
      continue;
    }
    const RandomCase c = random_case(*random, 16);
    SCOPED_TRACE(fmt::format("seed {}: {}", cases.seed(), to_string(c.layout)));
    expect_twins(c.config, c.layout, c.data);
  }
}

}  // namespace
}  // namespace teratron
