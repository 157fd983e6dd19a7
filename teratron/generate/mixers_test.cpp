// Models whose layers keep different things of a sequence: keys and values, values of another width, a state
// of constant size.
#include "teratron/testing/generation/mixers.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"
#include "teratron/models/gpt/gpt_config.h"
#include "teratron/models/transformer/layer_context.h"
#include "teratron/models/transformer/layer_stack.h"
#include "teratron/models/transformer/transformer_layer.h"
#include "teratron/nn/embedding.h"
#include "teratron/pipeline/pipeline_layout.h"
#include "teratron/testing/generation/generated_answers.h"
#include "teratron/testing/small_config.h"

namespace teratron {
namespace {

enum class Kind : uint8_t { attention, wide_keys, decayed_sum };

// A decoder of layers of these kinds.
class MixedModel : public Model {
 public:
  MixedModel(const GPTConfig& config, const std::vector<Kind>& kinds, const StageContext& part)
      : Model(part.stage), config_(config) {
    const Scope root(part.parameters);
    const VocabularyOptions words{config.vocabulary, config.padded_vocabulary, config.hidden,
                                  weight_init(config)};
    if (part.stage.embedding || part.stage.head)
      words_ = std::make_unique<VocabParallelEmbedding>(root / "words", words, part.parallel);
    const LayerFactory make_layer = [&](const Scope& scope, int64_t layer) {
      const auto mixer = [&, kind = kinds.at(layer)](const Scope& own) -> std::unique_ptr<Mixer> {
        if (kind == Kind::wide_keys)
          return std::make_unique<WideKeyAttention>(own, config.hidden, part.parallel);
        return std::make_unique<DecayedSum>(own, config.hidden, part.parallel);
      };
      const LayerParts parts{.attention = kinds.at(layer) == Kind::attention ? nullptr : MixerFactory(mixer)};
      return std::make_unique<TransformerLayer>(scope, config, layer, part.parallel, parts);
    };
    layers_ = std::make_unique<LayerStack>(root / "layers", config,
                                           LayerRange{part.stage.first_layer, part.stage.layers},
                                           part.parallel, make_layer);
    if (part.stage.head) logits_.emplace(ParallelMatmul::column(words_->weight(), nullptr, part.parallel));
  }

  Activations forward(const Activations& input, const MicroBatch& batch, LayerStates* states) override {
    const at::Tensor x_SBH = stage().embedding ? words_->forward(batch["tokens"]) : input["hidden"];
    return {{"hidden", layers_->forward(x_SBH, layer_context(batch, config_, nullptr), states).x_SBH}};
  }
  std::unique_ptr<LayerStates> make_states() const override { return layers_->make_states(); }
  at::Tensor logits(const Activations& output) override { return linear(output["hidden"], *logits_); }

 private:
  GPTConfig config_;
  std::unique_ptr<VocabParallelEmbedding> words_;
  std::unique_ptr<LayerStack> layers_;
  std::optional<ParallelMatmul> logits_;
};

ModelPlan plan_of(const std::vector<Kind>& kinds) {
  GPTConfig config = small_config();
  config.layers = std::ssize(kinds);
  config.max_positions = 48;
  config.position = PositionEmbedding::none;
  config.init_std = 0.3;
  return {.towers = {{"decoder", config.layers}},
          .batch = {},
          .channels = {{.name = "hidden", .shape = sequence_shape("tokens", config.hidden)}},
          .vocabulary = config.vocabulary,
          .padded_vocabulary = config.padded_vocabulary,
          .max_positions = config.max_positions,
          .build = [config, kinds](const StageContext& part) {
            return std::make_unique<MixedModel>(config, kinds, part);
          }};
}

const std::vector<std::vector<Kind>> mixtures = {
    {Kind::decayed_sum, Kind::decayed_sum},
    {Kind::wide_keys, Kind::attention},
    {Kind::decayed_sum, Kind::attention, Kind::wide_keys, Kind::decayed_sum}};

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
  all[2].beams = {.width = 3, .length_penalty = 1.0, .stop_token = 4};
  all[3].stop.tokens = {1, 2, 3, 4, 5, 6, 7};
  all[5].beams = {.width = 2, .length_penalty = 1.0, .stop_token = 9};
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

TEST(Mixers, StateWhatTheyKeep) {
  const auto needs = [](const std::vector<Kind>& kinds) {
    return state_needs(OwnModel(plan_of(kinds)).model);
  };
  EXPECT_EQ(needs({Kind::attention}).per_token, 2 * 2 * 4 * 8);  // two groups of four channels
  EXPECT_EQ(needs({Kind::wide_keys}).per_token, 4 * (6 + 3) * 8);
  EXPECT_EQ(needs({Kind::wide_keys}).per_sequence, 0);
  EXPECT_EQ(needs({Kind::decayed_sum}).per_token, 0);
  EXPECT_EQ(needs({Kind::decayed_sum, Kind::decayed_sum}).per_sequence, 2 * 2 * 16 * 8);
}

}  // namespace
}  // namespace teratron
