// Losses of layers with experts that do not depend on which ranks a part of the global batch is on, but on
// the part: the micro-batches that run at the same time, against one rank with a micro-batch of all of them.
#include <gtest/gtest.h>

#include "teratron/models/gpt/gpt_family.h"
#include "teratron/nn/moe/statistics.h"
#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"

namespace teratron {
namespace {

using S = ExpertStatistics;

constexpr int64_t experts = 8;

GPTConfig losses_config() {
  GPTConfig config = llama_config();
  config.layers = 2;
  config.experts.layers = {1, 1};
  MoeOptions& moe = config.experts.options;
  moe.router.experts = moe.experts.experts = experts;
  moe.experts.ffn_hidden = 12;
  config.init_std = 0.1;  // loads that differ
  return config;
}

// As training does: the samples of the replicas' first micro-batches come first, then those of the second.
TestModel trained_in_order(const GPTConfig& config, const Layout& layout) {
  const ModelPlan plan = gpt_plan(config, {});
  const auto batch = [replicas = layout.dp, vocabulary = plan.vocabulary](int64_t step, FlatRange samples) {
    const int64_t count = samples.size(), share = test_samples / replicas;
    const int64_t replica = samples.begin / share, number = samples.begin % share / count;
    const int64_t begin = (number * replicas + replica) * count;
    return test_batch({}, vocabulary, step, {begin, begin + count});
  };
  return {plan, batch};
}

void expect_same_losses(const StepResult& actual, const StepResult& expected) {
  ASSERT_EQ(actual.layer_sums.size(), expected.layer_sums.size());
  ASSERT_FALSE(expected.layer_sums.empty());
  const auto columns = static_cast<size_t>(S::columns(experts));
  for (size_t layer = 0; layer < expected.layer_sums.size(); layer += columns) {
    const auto mean = [layer](const StepResult& step, size_t column) {
      return step.layer_sums[layer + column] / step.layer_sums[layer + S::microbatches];
    };
    for (const S::Column loss : {S::seq_load_balancing_loss, S::global_load_balancing_loss, S::z_loss}) {
      EXPECT_GT(mean(expected, loss), 0.0);
      EXPECT_NEAR(mean(actual, loss), mean(expected, loss), 1e-9 * mean(expected, loss)) << loss;
    }
    for (size_t i = S::choices; i < columns; ++i)
      EXPECT_EQ(actual.layer_sums[layer + i], expected.layer_sums[layer + i]) << i;
  }
}

TEST(MoeLosses, OfTheStepMatchOneRankWithLargerMicroBatches) {
  GPTConfig config = losses_config();
  RouterOptions& router = config.experts.options.router;
  router.seq_aux_loss = 0.2;
  router.global_aux_loss = 0.3;
  router.z_loss = 0.05;
  for (const Layout& layout :
       {Layout{.dp = 2}, Layout{.dp = 2, .microbatches = 4}, Layout{.dp = 4, .ep = 2, .microbatches = 2},
        Layout{.pp = 2, .dp = 2, .microbatches = 2}, Layout{.cp = 2, .dp = 2, .ep = 4, .microbatches = 2},
        Layout{.tp = 2,
               .dp = 2,
               .ep = 2,
               .etp = 2,
               .microbatches = 2,
               .sequence_parallel = true,
               .sharded = true},
        Layout{.tp = 2, .cp = 2, .dp = 2, .ep = 2, .microbatches = 2, .sequence_parallel = true}}) {
    SCOPED_TRACE(to_string(layout));
    const Layout serial{.microbatches = layout.microbatches};
    const Gradients actual = gradients_of(trained_in_order(config, layout), layout, at::kDouble);
    const Gradients expected = gradients_of(trained_in_order(config, serial), serial, at::kDouble);
    expect_same(actual, expected, 1e-10);
    expect_same_losses(actual.step, expected.step);
  }
}

// Over equal micro-batches, the mean of their counts is that of one, which the auxiliary loss takes.
TEST(MoeLosses, OfTheStepIsThatOfAMicroBatchIfAllAreEqual) {
  for (const Layout& layout : {Layout{.microbatches = 4}, Layout{.dp = 2, .ep = 2, .microbatches = 2}}) {
    SCOPED_TRACE(to_string(layout));
    const auto gradients = [&layout](double RouterOptions::* loss) {
      GPTConfig config = losses_config();
      config.experts.options.router.*loss = 0.3;
      const ModelPlan plan = gpt_plan(config, {});
      const auto batch = [vocabulary = plan.vocabulary](int64_t step, FlatRange samples) {
        return test_batch({}, vocabulary, step, {0, samples.size()});
      };
      return gradients_of(TestModel{plan, batch}, layout, at::kDouble);
    };
    const Gradients expected = gradients(&RouterOptions::aux_loss);
    expect_same(gradients(&RouterOptions::global_aux_loss), expected, 1e-12);
    const at::Tensor weight = expected.tensors.at("decoder.layers.1.mlp.router.weight");
    EXPECT_GT(weight.norm().item<double>(), 0.0);
  }
}

}  // namespace
}  // namespace teratron
