#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/comm/host/thread_world.h"
#include "teratron/generate/generator.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/testing/small_config.h"

namespace teratron {
namespace {

GPTConfig config() {
  GPTConfig config = small_config();
  config.layers = 2;
  config.max_positions = 24;
  config.position = PositionEmbedding::rope;
  config.init_std = 0.3;
  return config;
}

std::vector<int32_t> text_of(int64_t tp, const GenerationOptions& options) {
  std::vector<int32_t> text;
  std::mutex mutex;
  run_ranks(MeshOptions{.tp = tp}, [&](const Mesh& mesh) {
    ParameterSet parameters({.dtype = at::kDouble, .seed = 9});
    const LanguageModel model = language_model(gpt_plan(config(), {}), parameters, mesh.group(Axis::tp));
    const std::vector<int32_t> mine = generate(model, {3, 1, 4, 1, 5}, options);
    const std::lock_guard lock(mutex);
    text = mine;
  });
  return text;
}

TEST(Generate, GreedyMatchesTheArgmaxOfFullForwards) {
  ParameterSet parameters({.dtype = at::kDouble, .seed = 9});
  const LanguageModel model = language_model(gpt_plan(config(), {}), parameters, {});
  std::vector<int64_t> ids = {3, 1, 4, 1, 5};
  const std::vector<int32_t> text = text_of(1, {.sampling = {.top_k = 1}, .max_new_tokens = 12});
  ASSERT_EQ(text.size(), 12U);
  for (const int32_t id : text) {
    EXPECT_EQ(logits_of(model, ids)[-1][0].argmax().item<int64_t>(), id);
    ids.push_back(id);
  }
}

TEST(Generate, TensorParallelRanksGenerateTheSameText) {
  for (const SamplingOptions& sampling :
       {SamplingOptions{.top_k = 1}, SamplingOptions{.top_k = 5}, SamplingOptions{.top_p = 0.9}}) {
    const GenerationOptions options{.sampling = sampling, .max_new_tokens = 10};
    EXPECT_EQ(text_of(2, options), text_of(1, options));
  }
}

TEST(Generate, StopsAtTheEndTokenAndAtTheLastPosition) {
  const std::vector<int32_t> text = text_of(1, {.sampling = {.top_k = 1}, .max_new_tokens = 100});
  EXPECT_EQ(text.size(), 24U - 5U);
  const int32_t end = text[3];
  const std::vector<int32_t> cut =
      text_of(1, {.sampling = {.top_k = 1}, .max_new_tokens = 100, .end_token = end});
  EXPECT_EQ(cut.back(), end);
  EXPECT_LE(cut.size(), 4U);
}

TEST(Generate, RejectsAPromptThatFillsThePositions) {
  ParameterSet parameters({.dtype = at::kDouble, .seed = 9});
  const LanguageModel model = language_model(gpt_plan(config(), {}), parameters, {});
  EXPECT_THROW(generate(model, std::vector<int32_t>(24, 1), {}), UserError);
}

std::map<int64_t, double> frequencies(const at::Tensor& logits, const SamplingOptions& options) {
  std::map<int64_t, double> share;
  constexpr int draws = 4000;
  for (int i = 0; i < draws; ++i) share[sample(logits, options, i)] += 1.0 / draws;
  return share;
}

TEST(Sampling, FollowsTheSoftmaxAtTheTemperature) {
  const at::Tensor logits = at::tensor({0.0, 1.0, 2.0, -1.0});
  const at::Tensor expected = (logits / 2.0).softmax(0);
  const auto share = frequencies(logits, {.temperature = 2.0});
  for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(share.at(i), expected[i].item<double>(), 0.03);
}

TEST(Sampling, TopKKeepsTheBest) {
  const auto share = frequencies(at::tensor({0.0, 1.0, 2.0, -1.0}), {.top_k = 2});
  EXPECT_EQ(share.size(), 2U);
  EXPECT_NEAR(share.at(2), 1.0 / (1.0 + std::exp(-1.0)), 0.03);
}

TEST(Sampling, TopPDropsTokensBeyondThatMass) {
  // Probabilities .5 .3 .15 .05: the mass before the third is .8.
  const at::Tensor logits = at::tensor({0.15, 0.5, 0.05, 0.3}).log();
  const auto share = frequencies(logits, {.top_p = 0.79});
  EXPECT_EQ(share.size(), 2U);
  EXPECT_NEAR(share.at(1), 0.5 / 0.8, 0.03);
  EXPECT_EQ(frequencies(logits, {.top_p = 0.81}).size(), 3U);
  EXPECT_EQ(frequencies(logits, {.top_p = 1e-9}).size(), 1U);
}

TEST(Sampling, RejectsWrongValuesTogether) {
  try {
    check_sampling({.temperature = 0.0, .top_k = 3, .top_p = 0.5});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    EXPECT_EQ(error.problems().size(), 2U);
  }
}

}  // namespace
}  // namespace teratron
