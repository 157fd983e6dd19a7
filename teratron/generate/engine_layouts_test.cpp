// Ranks of every layout generate the texts of one rank.
#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"
#include "teratron/generate/engine.h"
#include "teratron/generate/model_ranks.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/pipeline/pipeline_layout.h"
#include "teratron/testing/generation/generated_answers.h"
#include "teratron/testing/generation/letter_tokenizer.h"
#include "teratron/testing/generation/random_requests.h"
#include "teratron/testing/small_config.h"

namespace teratron {
namespace {

GPTConfig layouts_config() {
  GPTConfig config = small_config();
  config.max_positions = 48;
  config.position = PositionEmbedding::rope;
  config.init_std = 0.3;
  return config;
}

InferencePipeline pipeline_on(const Mesh& mesh, int64_t chunks = 1) {
  const Group& pipeline = mesh.group(Axis::pp);
  const PipelineLayout layout = pipeline_layout({.layers = 4, .stages = pipeline.size, .chunks = chunks});
  return {.chunks = layout.chunks_of_stage(pipeline.rank), .group = pipeline, .links = mesh.pipeline_links()};
}

void expect_answers_of_ranks(const GPTConfig& config, const MeshOptions& layout, int64_t virtual_stages,
                             const std::vector<GenerationRequest>& requests, const Answers& expected) {
  run_ranks(layout, [&](const Mesh& mesh) {
    ParameterSet parameters({.dtype = at::kDouble, .seed = 9});
    const LanguageModel model = language_model(
        gpt_plan(config, {}), parameters,
        {.tensor_parallel = mesh.group(Axis::tp), .pipeline = pipeline_on(mesh, virtual_stages)});
    for (const GenerationResult& result :
         ranked_answers(model, mesh, requests, letter_settings({.max_rows = 5})))
      expect_same(result.choices, expected.at(result.id), result.id);
  });
}

TEST(EngineLayouts, RanksOfEveryLayoutGenerateTheSameTexts) {
  std::mt19937 random(3);
  const std::vector<GenerationRequest> requests = random_requests(random, 8);
  const OwnModel own(gpt_plan(layouts_config(), {}));
  const Answers expected = answers_of(own.model, requests, letter_settings({.max_rows = 5}));
  struct Layout {
    MeshOptions mesh;
    int64_t virtual_stages = 1;  // of a rank
  };
  const std::vector<Layout> layouts = {
      {{.tp = 2}}, {{.pp = 2}}, {{.tp = 2, .pp = 2}}, {{.pp = 4}}, {{.pp = 2}, 2}};
  for (const auto& [options, virtual_stages] : layouts)
    expect_answers_of_ranks(layouts_config(), options, virtual_stages, requests, expected);
}

TEST(EngineLayouts, RanksThatShareKeysAndValuesGenerateTheSameTexts) {
  std::mt19937 random(3);
  const std::vector<GenerationRequest> requests = random_requests(random, 8);
  for (const int64_t groups : {1, 2}) {
    GPTConfig shared = layouts_config();
    shared.query_groups = groups;
    const OwnModel own(gpt_plan(shared, {}));
    const Answers expected = answers_of(own.model, requests, letter_settings({.max_rows = 5}));
    for (const MeshOptions& layout :
         {MeshOptions{.tp = 2}, MeshOptions{.tp = 4}, MeshOptions{.tp = 4, .pp = 2}})
      expect_answers_of_ranks(shared, layout, 1, requests, expected);
  }
}

// A search of 20 beams and 24 samples among others: an engine opens with 16 rows.
std::vector<GenerationRequest> wide_requests() {
  std::mt19937 random(29);
  std::vector<GenerationRequest> requests = random_requests(random, 4);
  GenerationRequest beams{.prompt = {3, 1, 4}, .max_new_tokens = 6};
  beams.beams = {.width = 20, .length_penalty = 1.5};
  beams.choices = 20;
  const GenerationRequest samples{.prompt = {5, 9}, .max_new_tokens = 60, .choices = 24, .logprobs = true};
  requests.insert(requests.begin() + 1, beams);
  requests.insert(requests.begin() + 3, samples);
  return requests;
}

TEST(EngineLayouts, ARequestOfMoreRowsThanItOpenedWithIsAnsweredAlone) {
  const std::vector<GenerationRequest> requests = wide_requests();
  const OwnModel own(gpt_plan(layouts_config(), {}));
  const Answers expected = answers_of(own.model, requests, letter_settings({.max_rows = 64}));
  const Answers found = answers_of(own.model, requests, letter_settings({}));
  for (size_t i = 0; i < requests.size(); ++i) expect_same(found.at(i), expected.at(i), i);
  EXPECT_EQ(found.at(1).size(), 20U);
  EXPECT_EQ(found.at(3).size(), 24U);
  run_ranks(MeshOptions{.tp = 2, .pp = 2}, [&](const Mesh& mesh) {
    ParameterSet parameters({.dtype = at::kDouble, .seed = 9});
    const LanguageModel model =
        language_model(gpt_plan(layouts_config(), {}), parameters,
                       {.tensor_parallel = mesh.group(Axis::tp), .pipeline = pipeline_on(mesh)});
    for (const GenerationResult& result : ranked_answers(model, mesh, requests, letter_settings({})))
      expect_same(result.choices, expected.at(result.id), result.id);
  });
}

GPTConfig expert_config() {
  GPTConfig config = small_expert_config();
  config.max_positions = 48;
  config.position = PositionEmbedding::rope;
  config.tied_embeddings = false;
  return config;
}

LanguageModel model_with_experts(const Mesh& mesh, ParameterSet& parameters) {
  return language_model(gpt_plan(expert_config(), {}), parameters,
                        {.tensor_parallel = mesh.group(Axis::tp),
                         .pipeline = pipeline_on(mesh),
                         .mesh = mesh,
                         .copies = ModelRanks(mesh).copies});
}

TEST(EngineLayouts, RanksThatShareExpertsGenerateTheSameTexts) {
  std::mt19937 random(31);
  const std::vector<GenerationRequest> requests = random_requests(random, 8);
  const OwnModel own(gpt_plan(expert_config(), {}));
  const Answers expected = answers_of(own.model, requests, letter_settings({.max_rows = 5}));
  for (const MeshOptions& layout : expert_layouts()) {
    run_ranks(layout, [&](const Mesh& mesh) {
      ParameterSet parameters({.dtype = at::kDouble, .seed = 9});
      const LanguageModel model = model_with_experts(mesh, parameters);
      EXPECT_EQ(parameters.find("decoder.layers.1.mlp.experts.0.linear_fc1.weight") != nullptr,
                mesh.group(Axis::ep).rank == 0 && mesh.group(Axis::pp).rank == 0);
      for (const GenerationResult& result :
           ranked_answers(model, mesh, requests, letter_settings({.max_rows = 5})))
        expect_same(result.choices, expected.at(result.id), result.id);
    });
  }
}

// A rank whose output layer differs, as if its GPU rounded differently.
TEST(EngineLayouts, RanksThatShareExpertsTakeTheTokensOfTheFirst) {
  std::mt19937 random(37);
  const std::vector<GenerationRequest> requests = random_requests(random, 6);
  const OwnModel own(gpt_plan(expert_config(), {}));
  const Answers expected = answers_of(own.model, requests, letter_settings({.max_rows = 5}));
  for (const MeshOptions& layout : {MeshOptions{.ep = 2, .dp = 2}, MeshOptions{.pp = 2, .ep = 2, .dp = 2}}) {
    run_ranks(layout, [&](const Mesh& mesh) {
      ParameterSet parameters({.dtype = at::kDouble, .seed = 9});
      const LanguageModel model = model_with_experts(mesh, parameters);
      Parameter* const output = parameters.find("output_layer.weight");
      if (output && mesh.group(Axis::ep).rank == 1) output->tensor.detach().neg_();
      for (const GenerationResult& result :
           ranked_answers(model, mesh, requests, letter_settings({.max_rows = 5})))
        expect_same(result.choices, expected.at(result.id), result.id);
    });
  }
}

}  // namespace
}  // namespace teratron
