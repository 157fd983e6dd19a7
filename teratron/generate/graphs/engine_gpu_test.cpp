// The engine on a GPU: its kernel (also with biases by distance and over stored sources), its graphs and its
// sampling against the same engine without them.
#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/device/device.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/models/t5/t5_family.h"
#include "teratron/testing/generation/generated_answers.h"
#include "teratron/testing/small_config.h"
#include "teratron/testing/t5_models.h"

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

std::vector<T5Variant> gpu_t5s() {
  std::vector<T5Variant> variants = {{"learned", small_t5_config()}, {"published", published_t5_config()}};
  T5Variant& grouped = variants.emplace_back("grouped", published_t5_config());
  for (T5Variant& variant : variants) {
    for (TransformerConfig* tower : {&variant.config.encoder, &variant.config.decoder}) {
      tower->hidden = 64;
      tower->ffn_hidden = 128;
      tower->kv_channels = 16;
      tower->init_std = 0.2;
    }
    variant.config.vocabulary = 500;
    variant.config.padded_vocabulary = 512;
    variant.config.max_positions = 120;
  }
  grouped.config.encoder.query_groups = grouped.config.decoder.query_groups = 2;
  return variants;
}

std::vector<GenerationRequest> prompts() {
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

std::vector<GenerationRequest> sources() {
  std::mt19937 random(6);
  const auto ids = [&](uint64_t most) {
    std::vector<int32_t> all(1 + random() % most);
    for (int32_t& id : all) id = static_cast<int32_t>(random() % 500);
    return all;
  };
  std::vector<GenerationRequest> requests;
  for (int64_t i = 0; i < 12; ++i) {
    GenerationRequest& request = requests.emplace_back();
    request.source = ids(110);
    request.prompt = i % 3 == 2 ? ids(20) : std::vector<int32_t>{1};
    request.max_new_tokens = 5 + static_cast<int64_t>(random() % 60);
    request.sampling.seed = random();
    if (i % 4 == 0) request.sampling.top_k = 1;
    if (i % 4 == 1) request.sampling.top_p = 0.8;
    if (i % 4 == 2) request.choices = 2;
    if (i == 7) request.beams.width = 3;
  }
  return requests;
}

struct Case {
  std::string name;
  ModelPlan plan;
  std::vector<GenerationRequest> requests;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [name, config] : gpu_configs()) all.push_back({name, gpt_plan(config, {}), prompts()});
  for (const T5Variant& variant : gpu_t5s())
    all.push_back({"T5, " + variant.name, t5_plan(variant.config, {}), sources()});
  return all;
}

struct Where {
  at::Device device = at::kCUDA;
  at::ScalarType dtype = at::kFloat;
  bool graphs = true;
  int64_t max_rows = 7;
};

Answers choices_of(const ModelPlan& plan, const std::vector<GenerationRequest>& requests,
                   const Where& where) {
  const OwnModel own(plan, where.device, where.dtype);
  return answers_of(own.model, requests,
                    {.max_rows = where.max_rows, .prompt_tokens = 50, .graphs = where.graphs});
}

using Texts = std::vector<std::vector<std::vector<int32_t>>>;  // of the choices of each request

Texts texts_of(const ModelPlan& plan, const std::vector<GenerationRequest>& requests, const Where& where) {
  Texts texts;
  for (const std::vector<GeneratedChoice>& choices : choices_of(plan, requests, where)) {
    texts.emplace_back();
    for (const GeneratedChoice& choice : choices) texts.back().push_back(choice.tokens);
  }
  return texts;
}

struct GpuEngine : ::testing::Test {
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

// In fp32 a random number could fall between two rounded sums; these do not.
TEST_F(GpuEngine, GeneratesTheTextsOfTheCpu) {
  for (const auto& [name, plan, requests] : cases()) {
    const Texts expected = texts_of(plan, requests, {.device = at::kCPU});
    EXPECT_EQ(texts_of(plan, requests, {.graphs = false}), expected) << name;
  }
}

TEST_F(GpuEngine, GraphsGiveTheTextsOfEagerSteps) {
  for (const auto& [name, plan, requests] : cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      std::vector<GenerationRequest> one = {requests[0]};
      one[0].max_new_tokens = 100;
      EXPECT_EQ(texts_of(plan, one, {.dtype = dtype}), texts_of(plan, one, {.dtype = dtype, .graphs = false}))
          << name;
    }
    EXPECT_EQ(texts_of(plan, requests, {}), texts_of(plan, requests, {.graphs = false})) << name;
  }
}

TEST_F(GpuEngine, TextsDoNotDependOnTheBatch) {
  for (const T5Variant& variant : gpu_t5s()) {
    const ModelPlan plan = t5_plan(variant.config, {});
    const std::vector<GenerationRequest> requests = sources();
    const Texts together = texts_of(plan, requests, {.max_rows = 12});
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(texts_of(plan, {requests[i]}, {}).at(0), together[i]) << variant.name << " " << i;
  }
}

TEST_F(GpuEngine, GraphsGiveTheMostProbableTokensOfEagerSteps) {
  std::vector<GenerationRequest> requests = prompts();
  for (size_t i = 0; i < requests.size(); i += 2) {
    requests[i].logprobs = true;
    requests[i].top_logprobs = static_cast<int64_t>(i);
  }
  const ModelPlan plan = gpt_plan(gpu_config(), {});
  const Answers graphs = choices_of(plan, requests, {}),
                eager = choices_of(plan, requests, {.graphs = false});
  for (size_t i = 0; i < requests.size(); ++i) {
    const GeneratedChoice &actual = graphs[i].at(0), &expected = eager[i].at(0);
    EXPECT_EQ(actual.tokens, expected.tokens);
    ASSERT_EQ(actual.top.size(), expected.top.size());
    for (size_t t = 0; t < actual.top.size(); ++t) {
      ASSERT_EQ(actual.top[t].size(), i);
      for (size_t k = 0; k < i; ++k) {
        EXPECT_EQ(actual.top[t][k].id, expected.top[t][k].id);
        EXPECT_NEAR(actual.top[t][k].logprob, expected.top[t][k].logprob, 1e-4);
      }
    }
  }
}

}  // namespace
}  // namespace teratron
