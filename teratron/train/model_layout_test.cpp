// A GPT in every TP, SP and DP layout against one rank: loss and every gradient.
#include <cstdlib>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "teratron/models/gpt/gpt_family.h"
#include "teratron/testing/generation/generation_steps.h"
#include "teratron/testing/models.h"

namespace teratron {
namespace {

void expect_twins(const TestVariant& variant, const TestStep& parallel_step) {
  const double bound = parallel_step.dtype == at::kDouble ? 1e-12 : 1e-5;
  TestStep step = parallel_step;
  step.config = variant.config;
  const LossAndGrads parallel = run_step(step);
  step.layout = {};
  const LossAndGrads serial = run_step(step);
  EXPECT_NEAR(parallel.loss, serial.loss, bound * serial.loss) << variant.name;
  ASSERT_EQ(parallel.gradients.size(), serial.gradients.size());
  // A gradient that is zero in theory (a bias before a softmax) consists of rounding errors.
  double largest = 0.0;
  for (const auto& [name, gradient] : serial.gradients) {
    largest = std::max(largest, gradient.norm().item<double>());
  }
  for (const auto& [name, gradient] : serial.gradients) {
    const double scale = std::max(gradient.norm().item<double>(), 1e-3 * largest);
    EXPECT_GT(gradient.norm().item<double>(), 0.0) << variant.name << " " << name;
    EXPECT_LT((parallel.gradients.at(name) - gradient).norm().item<double>(), bound * scale)
        << variant.name << " " << name << " tp " << parallel_step.layout.tp << " dp "
        << parallel_step.layout.dp;
  }
}

class ModelLayouts : public testing::TestWithParam<TestLayout> {};

TEST_P(ModelLayouts, MatchOneRank) {
  for (const TestVariant& variant : family_variants()) {
    expect_twins(variant, {.layout = GetParam()});
    expect_twins(variant, {.layout = GetParam(), .dtype = at::kFloat});
  }
}

TEST_P(ModelLayouts, MatchOneRankWithDocuments) {
  for (const TestVariant& variant : family_variants()) {
    expect_twins(variant, {.layout = GetParam(), .documents = true});
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ModelLayouts,
                         testing::Values(TestLayout{.tp = 2}, TestLayout{.tp = 2, .sequence_parallel = true},
                                         TestLayout{.dp = 2}, TestLayout{.tp = 2, .dp = 2},
                                         TestLayout{.tp = 2, .dp = 2, .sequence_parallel = true},
                                         TestLayout{.dp = 4}));

TEST(ModelOptions, MatchOneRank) {
  for (const bool sequence_parallel : {false, true}) {
    const TestLayout layout{.tp = 2, .sequence_parallel = sequence_parallel};
    for (const TestVariant& variant : option_variants()) expect_twins(variant, {.layout = layout});
  }
}

TEST(ModelOptions, RandomCombinationsMatchOneRank) {
  std::mt19937 random(17);
  const int count = std::getenv("TERATRON_LONG_TESTS") ? 500 : 24;
  for (int i = 0; i < count; ++i) {
    const TestVariant variant{fmt::format("random {}", i), random_config(random)};
    const TestLayout layout{.tp = 2, .sequence_parallel = random() % 2 == 0};
    expect_twins(variant, {.layout = layout, .documents = random() % 2 == 0});
  }
}

TEST(Gpt, PaddedLogitsDoNotMatter) {
  GPTConfig config = gpt2_config();
  const LossAndGrads padded = run_step({.config = config});
  config.padded_vocabulary = 37;
  const LossAndGrads exact = run_step({.config = config});
  EXPECT_DOUBLE_EQ(padded.loss, exact.loss);
  for (const auto& [name, gradient] : exact.gradients) {
    EXPECT_LT(relative_error(padded.gradients.at(name), gradient), 1e-13) << name;
  }
}

TEST(Gpt, StepsOfAGenerationMatchFullForward) {
  const at::NoGradGuard no_grad;
  for (const TestVariant& variant : all_variants()) {
    ParameterSet parameters({.dtype = at::kDouble, .seed = 3});
    GPT model(parameters, variant.config, {.layers = variant.config.layers}, {});
    MicroBatch whole = test_batch(variant.config, {}, false);
    whole.training = false;
    const at::Tensor expected = model.logits(model.forward({}, whole, nullptr));
    // As the engine numbers them: rotations by length have other rows for long texts.
    const int64_t first_row =
        gpt_plan(variant.config, {}).text.row_of(0, whole["tokens"].size(0), variant.config.max_positions);
    const SequencesInStep sequences{.sequences = whole["tokens"].size(1)};
    const auto states = model.make_states();
    states->allocate(sequences.capacity());
    for (const auto& [first, length] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {3, 1}, {4, 1}, {5, 3}}) {
      const auto of_step = [first = first, length = length](const at::Tensor& x_SB) {
        return by_sequence(x_SB.narrow(0, first, length));
      };
      MicroBatch chunk{.tensors = {{"tokens", of_step(whole["tokens"])},
                                   {"position_ids", of_step(whole["sequence_index"] + first_row)}},
                       .training = false};
      chunk.generation = sequences.step(first, length);
      const at::Tensor logits = model.logits(model.forward({}, chunk, states.get()));
      EXPECT_LT(relative_error(logits, of_step(expected)), 1e-12) << variant.name;
    }
  }
}

TEST(Gpt, GradientsMatchFiniteDifferences) {
  for (const TestVariant& variant : all_variants()) {
    ParameterSet parameters({.dtype = at::kDouble, .seed = 3});
    GPT model(parameters, variant.config, {.layers = variant.config.layers}, {});
    const MicroBatch batch = test_batch(variant.config, {}, false);
    const auto loss = [&] { return model.token_losses(model.forward({}, batch, nullptr), batch).mean(); };
    loss().backward();
    at::manual_seed(11);
    const at::NoGradGuard no_grad;
    for (Parameter& parameter : parameters.all()) {
      // Along a random direction the derivative is the gradient's projection.
      const at::Tensor direction = at::randn_like(parameter.tensor);
      const double step = 1e-7;  // small enough for norms of small outputs, and to cross no kink of ReLU
      parameter.tensor.add_(direction, step);
      const double above = loss().item<double>();
      parameter.tensor.add_(direction, -2.0 * step);
      const double below = loss().item<double>();
      parameter.tensor.add_(direction, step);
      const double expected = (above - below) / (2.0 * step);
      const double actual = (parameter.main_grad * direction).sum().item<double>();
      EXPECT_NEAR(actual, expected, 1e-6 * std::max(1.0, std::abs(expected)))
          << variant.name << " " << parameter.name;
    }
  }
}

}  // namespace
}  // namespace teratron
