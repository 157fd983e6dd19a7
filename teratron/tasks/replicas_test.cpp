// Outcomes of replicas beside full forwards of one rank.
#include "teratron/tasks/replicas.h"

#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/pipeline/pipeline_layout.h"
#include "teratron/testing/small_config.h"

namespace teratron {
namespace {

GPTConfig small_gpt(bool experts = false) {
  GPTConfig config = experts ? small_expert_config() : small_config();
  config.max_positions = 24;
  config.init_std = 0.3;
  return config;
}

std::vector<GenerationRequest> scored_requests() {
  std::mt19937 random(5);
  std::vector<GenerationRequest> requests;
  for (int64_t i = 0; i < 23; ++i) {
    GenerationRequest& request = requests.emplace_back();
    // Up to the model's positions and one more: the last token is only predicted.
    const int64_t length = i == 0 ? 25 : 2 + static_cast<int64_t>(random() % 24);
    for (int64_t t = 0; t < length; ++t) request.prompt.push_back(static_cast<int32_t>(random() % 37));
    request.max_new_tokens = 0;
    request.logprobs = true;
    request.top_logprobs = 1;
    request.logprobs_from = 1 + static_cast<int64_t>(random() % (length - 1));
  }
  return requests;
}

// In fp64, by whole forwards.
RequestOutcome expected_outcome(const LanguageModel& model, const GenerationRequest& request) {
  const std::vector<int64_t> inputs(request.prompt.begin(), request.prompt.end() - 1);
  const at::Tensor logprobs = logits_of(model, inputs).squeeze(1).log_softmax(-1);
  RequestOutcome outcome;
  for (auto t = request.logprobs_from; t < static_cast<int64_t>(request.prompt.size()); ++t) {
    const int64_t token = request.prompt[t];
    outcome.log_likelihood += logprobs[t - 1][token].item<double>();
    outcome.most_probable = outcome.most_probable && logprobs[t - 1].argmax().item<int64_t>() == token;
    outcome.tokens += 1;
  }
  return outcome;
}

LanguageModel own_part(const GPTConfig& config, const Mesh& mesh, ParameterSet& parameters) {
  const Group& pipeline = mesh.group(Axis::pp);
  const PipelineLayout layout = pipeline_layout({.layers = 4, .stages = pipeline.size, .chunks = 1});
  return language_model(gpt_plan(config, {}), parameters,
                        {.tensor_parallel = mesh.group(Axis::tp),
                         .pipeline = {.chunks = layout.chunks_of_stage(pipeline.rank),
                                      .group = pipeline,
                                      .links = mesh.pipeline_links()},
                         .mesh = mesh,
                         .copies = ModelRanks(mesh).copies});
}

void expect_outcomes_of_one_forward(const GPTConfig& config, const std::vector<MeshOptions>& layouts) {
  const std::vector<GenerationRequest> requests = scored_requests();
  ParameterSet parameters({.dtype = at::kDouble, .device = at::kCPU, .seed = 9});
  const LanguageModel whole = language_model(gpt_plan(config, {}), parameters, {});
  std::vector<RequestOutcome> expected;
  for (const GenerationRequest& request : requests) expected.push_back(expected_outcome(whole, request));
  for (const MeshOptions& layout : layouts) {
    run_ranks(layout, [&](const Mesh& mesh) {
      ParameterSet own({.dtype = at::kDouble, .seed = 9});
      const LanguageModel model = own_part(config, mesh, own);
      const ReplicatedModel replicated{
          .mesh = mesh, .model = model, .settings = {.max_rows = 3, .prompt_tokens = 7}};
      int64_t answered = 0;
      const std::vector<RequestOutcome> outcomes = answer_requests(
          replicated,
          {.size = static_cast<int64_t>(requests.size()), .get = [&](int64_t i) { return requests[i]; }},
          [&](int64_t count) { answered = count; });
      ASSERT_EQ(outcomes.size(), expected.size());
      for (size_t i = 0; i < outcomes.size(); ++i) {
        EXPECT_NEAR(outcomes[i].log_likelihood, expected[i].log_likelihood, 1e-9) << i;
        EXPECT_EQ(outcomes[i].tokens, expected[i].tokens) << i;
        EXPECT_EQ(outcomes[i].most_probable, expected[i].most_probable) << i;
      }
      if (replicated.ranks().all.rank == 0) {
        EXPECT_GT(answered, 0);
      }
    });
  }
}

TEST(Replicas, EveryLayoutScoresAsOneForward) {
  expect_outcomes_of_one_forward(
      small_gpt(), {{}, {.dp = 2}, {.dp = 3}, {.tp = 2, .dp = 2}, {.pp = 2, .dp = 2}, {.tp = 2, .pp = 2}});
}

TEST(Replicas, OfRanksThatShareExpertsScoreAsOneForward) {
  std::vector<MeshOptions> layouts = expert_layouts();
  layouts.push_back({.ep = 2, .dp = 4});  // two replicas
  layouts.push_back({.tp = 2, .ep = 4, .dp = 4});
  layouts.push_back({.pp = 2, .ep = 2, .dp = 6});
  layouts.push_back({.tp = 2, .ep = 2, .dp = 2});
  expect_outcomes_of_one_forward(small_gpt(true), layouts);
}

TEST(Replicas, GreedyContinuationsAreMostProbable) {
  ParameterSet parameters({.dtype = at::kDouble, .device = at::kCPU, .seed = 9});
  const LanguageModel whole = language_model(gpt_plan(small_gpt(), {}), parameters, {});
  std::vector<int64_t> ids = {3, 1};
  while (ids.size() < 12) ids.push_back(logits_of(whole, ids).squeeze(1)[-1].argmax().item<int64_t>());
  GenerationRequest request{.prompt = {ids.begin(), ids.end()},
                            .max_new_tokens = 0,
                            .logprobs = true,
                            .logprobs_from = 2,
                            .top_logprobs = 1};
  GenerationRequest other = request;
  other.prompt.back() = (other.prompt.back() + 1) % 37;
  run_ranks({}, [&](const Mesh& mesh) {
    const std::vector<RequestOutcome> outcomes =
        answer_requests({.mesh = mesh, .model = whole},
                        {.size = 2, .get = [&](int64_t i) { return i == 0 ? request : other; }});
    EXPECT_TRUE(outcomes[0].most_probable);
    EXPECT_FALSE(outcomes[1].most_probable);
  });
}

}  // namespace
}  // namespace teratron
