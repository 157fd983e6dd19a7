// An encoder and a decoder on a GPU: the kernel, with biases by distance and over stored sources, and its
// graphs against the same engine without them.
#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/generate/engine.h"
#include "teratron/models/t5/t5_family.h"
#include "teratron/testing/t5_models.h"
#include "teratron/train/device/device.h"

namespace teratron {
namespace {

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

struct Where {
  at::Device device = at::kCUDA;
  at::ScalarType dtype = at::kFloat;
  bool graphs = true;
  int64_t max_rows = 7;
};

using Texts = std::vector<std::vector<std::vector<int32_t>>>;  // of the choices of each request

Texts texts_of(const T5Config& config, const std::vector<GenerationRequest>& requests, const Where& where) {
  ParameterSet parameters({.dtype = where.dtype, .device = where.device, .seed = 9});
  const LanguageModel model = language_model(t5_plan(config, {}), parameters, {});
  SingleHostGroup ranks;
  Engine engine(model, {.max_rows = where.max_rows, .prompt_tokens = 50, .graphs = where.graphs}, ranks);
  for (const GenerationRequest& request : requests) engine.submit(request);
  while (engine.step()) {
  }
  Texts texts(requests.size());
  for (const GenerationResult& result : engine.take_results()) {
    for (const GeneratedChoice& choice : result.choices) texts.at(result.id).push_back(choice.tokens);
  }
  return texts;
}

std::vector<GenerationRequest> some_requests() {
  std::mt19937 random(6);
  const auto ids = [&](uint64_t most) {
    std::vector<int32_t> all(1 + random() % most);
    for (int32_t& id : all) id = static_cast<int32_t>(random() % 500);
    return all;
  };
  std::vector<GenerationRequest> requests;
  for (int64_t i = 0; i < 12; ++i) {
    GenerationRequest& request = requests.emplace_back();
    request.encoder_tokens = ids(110);
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

struct GpuT5Engine : ::testing::Test {
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(GpuT5Engine, GeneratesTheTextsOfTheCpu) {
  for (const auto& [name, config] : gpu_t5s()) {
    const Texts expected = texts_of(config, some_requests(), {.device = at::kCPU});
    EXPECT_EQ(texts_of(config, some_requests(), {.graphs = false}), expected) << name;
  }
}

TEST_F(GpuT5Engine, GraphsGiveTheTextsOfEagerSteps) {
  for (const auto& [name, config] : gpu_t5s()) {
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

TEST_F(GpuT5Engine, TextsDoNotDependOnTheBatch) {
  for (const auto& [name, config] : gpu_t5s()) {
    const std::vector<GenerationRequest> requests = some_requests();
    const Texts together = texts_of(config, requests, {.max_rows = 12});
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(texts_of(config, {requests[i]}, {}).at(0), together[i]) << name << " " << i;
  }
}

}  // namespace
}  // namespace teratron
