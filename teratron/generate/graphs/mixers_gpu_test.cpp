// Layers that keep a state of constant size, or values of another width than their keys, on a GPU: steps that
// are CUDA graphs beside eager ones, and both beside full forwards.
#include <gtest/gtest.h>

#include "teratron/device/device.h"
#include "teratron/testing/generation/generated_answers.h"
#include "teratron/testing/generation/mixed_model.h"
#include "teratron/testing/small_config.h"

namespace teratron {
namespace {

using Kinds = std::vector<LayerKind>;

// All layers decode from tables, so that their steps are graphs.
const std::vector<Kinds> graph_mixtures = {
    {LayerKind::lone_sum},
    {LayerKind::decayed_sum, LayerKind::decayed_sum},
    {LayerKind::lone_sum, LayerKind::attention, LayerKind::four_norms, LayerKind::decayed_sum}};
// In bf16 by fused kernels, else in tensor operations.
const std::vector<Kinds> recurrent_mixtures = {{LayerKind::mamba, LayerKind::mamba},
                                               {LayerKind::delta, LayerKind::attention, LayerKind::mamba}};
const Kinds wide_mixture = {LayerKind::wide_keys, LayerKind::lone_sum, LayerKind::attention};

ModelPlan gpu_mixture(const Kinds& kinds) {
  GPTConfig config = small_config();
  config.hidden = 64;
  config.ffn_hidden = 128;
  config.kv_channels = 16;
  config.vocabulary = 500;
  config.padded_vocabulary = 512;
  config.max_positions = 200;
  config.init_std = 0.2;
  return mixed_plan(config, kinds);
}

struct MixerPlace {
  at::Device device = at::kCUDA;
  bool graphs = true;
  int64_t max_rows = 3;
  at::ScalarType dtype = at::kFloat;
};

std::vector<std::vector<int32_t>> mixed_texts(const Kinds& kinds, const MixerPlace& place,
                                              const std::vector<GenerationRequest>& requests) {
  const OwnModel own(gpu_mixture(kinds), place.device, place.dtype);
  const Answers answers =
      answers_of(own.model, requests,
                 {.max_rows = place.max_rows, .page_size = 8, .prompt_tokens = 20, .graphs = place.graphs});
  std::vector<std::vector<int32_t>> texts;
  for (const std::vector<GeneratedChoice>& choices : answers) {
    for (const GeneratedChoice& choice : choices) texts.push_back(choice.tokens);
  }
  return texts;
}

GenerationRequest greedy(int64_t prompt, int64_t new_tokens) {
  GenerationRequest request{.max_new_tokens = new_tokens, .sampling = {.top_k = 1}};
  for (int64_t i = 0; i < prompt; ++i)
    request.prompt.push_back(static_cast<int32_t>((31 * prompt + 7 * i) % 500));
  return request;
}

// Few rows: requests wait, join when others leave, and take their slots. Beams copy slots, and their steps
// are eager, between those that are graphs.
std::vector<GenerationRequest> crowd() {
  std::vector<GenerationRequest> all;
  for (int64_t i = 0; i < 9; ++i) all.push_back(greedy(1 + 5 * i % 33, 4 + 7 * i % 25));
  all[1].choices = 2;
  all[1].sampling = {.temperature = 0.8, .seed = 5};
  all[3].beams = {.width = 3, .length_penalty = 1.0}, all[3].stop.tokens = {4};
  all[6].beams = {.width = 2, .length_penalty = 1.0}, all[6].stop.tokens = {9};
  all[7].sampling = {.top_p = 0.9, .seed = 11};
  return all;
}

struct GpuMixers : ::testing::Test {
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

// A slot holds the states of an even and an odd position, and two graphs take turns: every parity of the
// first position and of the number of steps.
TEST_F(GpuMixers, GraphsOfAnyNumberOfStepsGiveEagerTexts) {
  for (const Kinds& kinds : graph_mixtures) {
    const OwnModel own(gpu_mixture(kinds), at::kCUDA, at::kFloat);
    EXPECT_TRUE(own.model.whole().make_states()->decodes_from_tables());
    for (const int64_t prompt : {4, 5}) {
      for (const int64_t steps : {7, 8, 20, 21}) {
        const std::vector<GenerationRequest> one = {greedy(prompt, steps)};
        EXPECT_EQ(mixed_texts(kinds, {}, one), mixed_texts(kinds, {.graphs = false}, one))
            << prompt << " + " << steps;
      }
    }
  }
}

TEST_F(GpuMixers, RecurrencesGiveEagerTextsInGraphs) {
  for (const Kinds& kinds : recurrent_mixtures) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(at::toString(dtype));
      for (const auto& [prompt, steps] : {std::pair{4, 21}, {5, 20}}) {
        const std::vector<GenerationRequest> one = {greedy(prompt, steps)};
        EXPECT_EQ(mixed_texts(kinds, {.dtype = dtype}, one),
                  mixed_texts(kinds, {.graphs = false, .dtype = dtype}, one));
      }
    }
    // Graphs pad batches: products in bf16 then round otherwise.
    EXPECT_EQ(mixed_texts(kinds, {}, crowd()), mixed_texts(kinds, {.graphs = false}, crowd()));
  }
}

TEST_F(GpuMixers, GraphsGiveEagerTextsWhenRequestsJoinAndLeave) {
  for (const Kinds& kinds : graph_mixtures) {
    for (const int64_t rows : {3, 6}) {
      EXPECT_EQ(mixed_texts(kinds, {.max_rows = rows}, crowd()),
                mixed_texts(kinds, {.graphs = false, .max_rows = rows}, crowd()))
          << rows;
    }
  }
}

TEST_F(GpuMixers, GenerateTheTextsOfTheCpu) {
  std::vector<Kinds> all = graph_mixtures;
  all.push_back(wide_mixture);
  all.insert(all.end(), recurrent_mixtures.begin(), recurrent_mixtures.end());
  for (const Kinds& kinds : all)
    EXPECT_EQ(mixed_texts(kinds, {}, crowd()), mixed_texts(kinds, {.device = at::kCPU}, crowd()));
}

TEST_F(GpuMixers, GreedyTokensAreTheMostProbableOfFullForwards) {
  std::vector<Kinds> all = graph_mixtures;
  all.push_back(wide_mixture);
  for (const Kinds& kinds : all) {
    const OwnModel own(gpu_mixture(kinds), at::kCUDA, at::kFloat);
    const GenerationRequest request = greedy(21, 30);
    std::vector<int64_t> ids(request.prompt.begin(), request.prompt.end());
    const std::vector<std::vector<int32_t>> texts = mixed_texts(kinds, {}, {request});
    for (const int32_t id : texts.at(0)) {
      const at::Tensor logits_V = logits_of(own.model, ids)[-1][0].narrow(0, 0, 500);
      const double below = (logits_V.max() - logits_V[id]).item<double>();
      EXPECT_LT(below, 1e-4 * logits_V.abs().max().item<double>()) << ids.size();
      ids.push_back(id);
    }
    EXPECT_EQ(ids.size(), 51U);
  }
}

}  // namespace
}  // namespace teratron
