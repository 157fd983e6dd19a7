// The engine on a GPU: its kernel, its graphs and its sampling against the same engine without them.
#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/generate/engine.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/testing/small_config.h"
#include "teratron/train/device/device.h"

namespace teratron {
namespace {

GPTConfig gpu_config() {
  GPTConfig config = small_config();
  config.hidden = 64;
  config.ffn_hidden = 128;
  config.kv_channels = 16;
  config.vocabulary = 500;
  config.padded_vocabulary = 512;
  config.max_positions = 200;
  config.position = PositionEmbedding::rope;
  config.init_std = 0.2;
  return config;
}

std::vector<std::pair<const char*, GPTConfig>> gpu_configs() {
  GPTConfig windows = gpu_config(), alibi = gpu_config(), learned = gpu_config();
  windows.windows = {30, 0, 7, 30};
  windows.qk_norm = true;
  alibi.position = PositionEmbedding::alibi;
  learned.position = PositionEmbedding::learned_absolute;
  learned.query_groups = 4;
  return {{"rope", gpu_config()}, {"windows", windows}, {"alibi", alibi}, {"learned", learned}};
}

struct Where {
  at::Device device = at::kCUDA;
  at::ScalarType dtype = at::kFloat;
  bool graphs = true;
};

std::vector<GeneratedChoice> choices_of(const GPTConfig& config,
                                        const std::vector<GenerationRequest>& requests, const Where& where) {
  ParameterSet parameters({.dtype = where.dtype, .device = where.device, .seed = 9});
  const LanguageModel model = language_model(gpt_plan(config, {}), parameters, {});
  SingleHostGroup ranks;
  Engine engine(model, {.max_rows = 7, .prompt_tokens = 50, .graphs = where.graphs}, ranks);
  for (const GenerationRequest& request : requests) engine.submit(request);
  while (engine.step()) {
  }
  std::vector<GeneratedChoice> choices(requests.size());
  for (GenerationResult& result : engine.take_results())
    choices.at(result.id) = std::move(result.choices.at(0));
  return choices;
}

std::vector<std::vector<int32_t>> texts_of(const GPTConfig& config,
                                           const std::vector<GenerationRequest>& requests,
                                           const Where& where) {
  std::vector<std::vector<int32_t>> texts;
  for (const GeneratedChoice& choice : choices_of(config, requests, where)) texts.push_back(choice.tokens);
  return texts;
}

std::vector<GenerationRequest> some_requests() {
  std::mt19937 random(4);
  std::vector<GenerationRequest> requests;
  for (int64_t i = 0; i < 12; ++i) {
    GenerationRequest& request = requests.emplace_back();
    for (uint64_t n = 1 + random() % 90; n > 0; --n)
      request.prompt.push_back(static_cast<int32_t>(random() % 500));
    request.max_new_tokens = 5 + static_cast<int64_t>(random() % 60);
    request.sampling.seed = random();
    if (i % 4 == 0) request.sampling.top_k = 1;
    if (i % 4 == 1) request.sampling.top_k = 20;
    if (i % 4 == 2) request.sampling.top_p = 0.8;
    if (i == 5) request.beams.width = 3;
  }
  requests[5].sampling.top_k = 0;
  return requests;
}

struct GpuEngine : ::testing::Test {
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

// In fp32 a random number could fall between two rounded sums; these do not.
TEST_F(GpuEngine, GeneratesTheTextsOfTheCpu) {
  for (const auto& [name, config] : gpu_configs()) {
    const auto expected = texts_of(config, some_requests(), {.device = at::kCPU});
    EXPECT_EQ(texts_of(config, some_requests(), {.graphs = false}), expected) << name;
  }
}

TEST_F(GpuEngine, GraphsGiveTheTextsOfEagerSteps) {
  for (const auto& [name, config] : gpu_configs()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      std::vector<GenerationRequest> one = {some_requests()[0]};
      one[0].max_new_tokens = 100;
      EXPECT_EQ(texts_of(config, one, {.dtype = dtype}),
                texts_of(config, one, {.dtype = dtype, .graphs = false}))
          << name;
    }
    EXPECT_EQ(texts_of(config, some_requests(), {}), texts_of(config, some_requests(), {.graphs = false}))
        << name;
  }
}

TEST_F(GpuEngine, GraphsGiveTheMostProbableTokensOfEagerSteps) {
  std::vector<GenerationRequest> requests = some_requests();
  for (size_t i = 0; i < requests.size(); i += 2) {
    requests[i].logprobs = true;
    requests[i].top_logprobs = static_cast<int64_t>(i);
  }
  const auto graphs = choices_of(gpu_config(), requests, {});
  const auto eager = choices_of(gpu_config(), requests, {.graphs = false});
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(graphs[i].tokens, eager[i].tokens);
    ASSERT_EQ(graphs[i].top.size(), eager[i].top.size());
    for (size_t t = 0; t < graphs[i].top.size(); ++t) {
      ASSERT_EQ(graphs[i].top[t].size(), i);
      for (size_t k = 0; k < i; ++k) {
        EXPECT_EQ(graphs[i].top[t][k].id, eager[i].top[t][k].id);
        EXPECT_NEAR(graphs[i].top[t][k].logprob, eager[i].top[t][k].logprob, 1e-4);
      }
    }
  }
}

}  // namespace
}  // namespace teratron
