// Models whose layers keep different things of a sequence: keys and values, values of another width, a state
// of constant size.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"
#include "teratron/pipeline/pipeline_layout.h"
#include "teratron/testing/generation/generated_answers.h"
#include "teratron/testing/generation/mixed_model.h"
#include "teratron/testing/small_config.h"

namespace teratron {
namespace {

using Kind = LayerKind;

ModelPlan plan_of(const std::vector<Kind>& kinds) {
  GPTConfig config = small_config();
  config.max_positions = 48;
  config.init_std = 0.3;
  return mixed_plan(config, kinds);
}

const std::vector<std::vector<Kind>> mixtures = {
    {Kind::decayed_sum, Kind::decayed_sum},
    {Kind::wide_keys, Kind::attention},
    {Kind::mamba, Kind::mamba},
    {Kind::delta, Kind::attention, Kind::delta},
    {Kind::four_norms, Kind::lone_sum},
    {Kind::mamba, Kind::lone_sum, Kind::attention, Kind::wide_keys, Kind::delta, Kind::decayed_sum}};

// Prompts of several lengths, some of which are read in parts; sampling, several answers, beams.
std::vector<GenerationRequest> requests() {
  std::vector<GenerationRequest> all;
  for (int32_t i = 0; i < 7; ++i) {
    GenerationRequest& request = all.emplace_back();
    for (int32_t t = 0; t < 1 + 4 * i; ++t) request.prompt.push_back((7 * i + 3 * t) % 37);
    request.max_new_tokens = 5 + 2 * i;
    request.sampling.top_k = 1;
  }
  all[1].choices = 2;
  all[1].sampling = {.temperature = 0.8, .seed = 5};
  all[2].beams = {.width = 3, .length_penalty = 1.0};
  all[2].stop.tokens = {4};
  all[3].stop.tokens = {1, 2, 3, 4, 5, 6, 7};
  all[5].beams = {.width = 2, .length_penalty = 1.0};
  all[5].stop.tokens = {9};
  return all;
}

TEST(Mixers, GreedyTokensAreTheArgmaxOfFullForwards) {
  for (const std::vector<Kind>& kinds : mixtures) {
    const OwnModel own(plan_of(kinds));
    for (const int64_t prompt_tokens : {2, 3, 64}) {  // a prompt in parts of an even or odd length
      std::vector<int64_t> ids = {3, 1, 4, 1, 5, 9, 2};
      const GenerationRequest request{
          .prompt = {3, 1, 4, 1, 5, 9, 2}, .max_new_tokens = 12, .sampling = {.top_k = 1}};
      const Answers answers =
          answers_of(own.model, {request}, {.max_rows = 4, .prompt_tokens = prompt_tokens});
      for (const int32_t id : answers.at(0).at(0).tokens) {
        ASSERT_EQ(logits_of(own.model, ids)[-1][0].argmax().item<int64_t>(), id);
        ids.push_back(id);
      }
      EXPECT_EQ(ids.size(), 19U);
    }
  }
}

TEST(Mixers, AnswersDoNotDependOnOtherRequests) {
  for (const std::vector<Kind>& kinds : mixtures) {
    const OwnModel own(plan_of(kinds));
    const std::vector<GenerationRequest> all = requests();
    // They wait for rows, and take slots and pages that others have left.
    const Answers together = answers_of(own.model, all, {.max_rows = 4, .page_size = 2, .prompt_tokens = 5});
    for (size_t i = 0; i < all.size(); ++i) {
      const Answers alone = answers_of(own.model, {all[i]}, {.max_rows = 4});
      ASSERT_EQ(together.at(i).size(), alone.at(0).size());
      for (size_t c = 0; c < alone.at(0).size(); ++c)
        EXPECT_EQ(together.at(i).at(c).tokens, alone.at(0).at(c).tokens) << i;
    }
  }
}

TEST(Mixers, StatesOfAWideRequestFollowThoseOfOthers) {
  for (const std::vector<Kind>& kinds : mixtures) {
    const OwnModel own(plan_of(kinds));
    std::vector<GenerationRequest> all = requests();
    all.at(0).choices = 19;
    all.at(0).beams = {};
    const Answers expected = answers_of(own.model, all, {.max_rows = 40}),
                  found = answers_of(own.model, all, {});
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(found.at(i).size(), expected.at(i).size());
      for (size_t c = 0; c < found.at(i).size(); ++c)
        EXPECT_EQ(found.at(i).at(c).tokens, expected.at(i).at(c).tokens) << i;
    }
  }
}

TEST(Mixers, RanksOfEveryLayoutGenerateTheSameTexts) {
  const ModelPlan plan = plan_of(mixtures.back());
  const Answers expected = answers_of(OwnModel(plan).model, requests(), {.max_rows = 5});
  for (const MeshOptions& layout :
       {MeshOptions{.tp = 2}, MeshOptions{.pp = 2}, MeshOptions{.tp = 2, .pp = 2}}) {
    run_ranks(layout, [&](const Mesh& mesh) {
      ParameterSet parameters({.dtype = at::kDouble, .seed = 9});
      const Group& stages = mesh.group(Axis::pp);
      const PipelineLayout pipeline = pipeline_layout({.layers = plan.layers(), .stages = stages.size});
      const LanguageModel model =
          language_model(plan, parameters,
                         {.tensor_parallel = mesh.group(Axis::tp),
                          .pipeline = {.chunks = pipeline.chunks_of_stage(stages.rank),
                                       .group = stages,
                                       .links = mesh.pipeline_links()}});
      for (const GenerationResult& result : ranked_answers(model, mesh, requests())) {
        for (size_t c = 0; c < result.choices.size(); ++c)
          EXPECT_EQ(result.choices[c].tokens, expected.at(result.id).at(c).tokens) << result.id;
      }
    });
  }
}

// On a CPU nothing is captured, but steps run ahead all the same (graphs/decode_graphs.h) without attention.
TEST(Mixers, GraphsGiveTheTextsOfEagerSteps) {
  for (const std::vector<Kind>& kinds : {std::vector{Kind::lone_sum},
                                         {Kind::decayed_sum, Kind::lone_sum},
                                         {Kind::mamba, Kind::mamba},
                                         {Kind::delta, Kind::mamba}}) {
    const OwnModel own(plan_of(kinds));
    const auto answers = [&](bool graphs) {
      std::vector<std::vector<int32_t>> all;
      for (const auto& choices : answers_of(own.model, requests(), {.max_rows = 4, .graphs = graphs})) {
        for (const GeneratedChoice& choice : choices) all.push_back(choice.tokens);
      }
      return all;
    };
    EXPECT_TRUE(own.model.whole().make_states()->decodes_from_tables());
    EXPECT_EQ(answers(true), answers(false));
  }
}

TEST(Mixers, LayersHaveThePartsAndNormsOfTheirLists) {
  const OwnModel own(plan_of({Kind::lone_sum, Kind::four_norms}));
  std::vector<std::string> norms, others;
  for (const Parameter& parameter : own.parameters.all()) {
    const std::string& name = parameter.name;
    if (name.ends_with("norm.weight")) norms.push_back(name);
    if (name.starts_with("layers.0.") && name.ends_with(".weight") && !name.ends_with("norm.weight"))
      others.push_back(name);
  }
  EXPECT_EQ(norms, (std::vector<std::string>{"layers.0.norm.weight", "layers.1.input_layernorm.weight",
                                             "layers.1.post_self_attn_layernorm.weight",
                                             "layers.1.pre_mlp_layernorm.weight",
                                             "layers.1.post_mlp_layernorm.weight"}));
  EXPECT_EQ(others, (std::vector<std::string>{"layers.0.mixer.linear_in.weight",
                                              "layers.0.mixer.linear_proj.weight"}));
}

TEST(Mixers, StateWhatTheyKeep) {
  const auto needs = [](const std::vector<Kind>& kinds) {
    return state_needs(OwnModel(plan_of(kinds)).model);
  };
  EXPECT_EQ(needs({Kind::attention}).per_token, 2 * 2 * 4 * 8);  // two groups of four channels
  EXPECT_EQ(needs({Kind::wide_keys}).per_token, 4 * (6 + 3) * 8);
  EXPECT_EQ(needs({Kind::wide_keys}).per_sequence, 0);
  EXPECT_EQ(needs({Kind::decayed_sum}).per_token, 0);
  EXPECT_EQ(needs({Kind::lone_sum}).per_token, 0);
  EXPECT_EQ(needs({Kind::lone_sum}).per_sequence, 2 * 16 * 8);
  EXPECT_EQ(needs({Kind::decayed_sum, Kind::decayed_sum}).per_sequence, 2 * 2 * 16 * 8);
}

}  // namespace
}  // namespace teratron
