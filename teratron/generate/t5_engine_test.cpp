// Texts of an encoder and a decoder: those of full forwards, with any batch, layout and paging.
#include <algorithm>
#include <random>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"
#include "teratron/models/t5/t5_family.h"
#include "teratron/pipeline/pipeline_layout.h"
#include "teratron/testing/generation/generated_answers.h"
#include "teratron/testing/t5_models.h"

namespace teratron {
namespace {

// With weights that tell tokens apart, and room for texts.
std::vector<T5Variant> generating_t5s() {
  std::vector<T5Variant> variants = {{"learned", small_t5_config()}, {"published", published_t5_config()}};
  for (T5Variant& variant : variants) {
    for (TransformerConfig* tower : {&variant.config.encoder, &variant.config.decoder}) tower->init_std = 0.3;
    variant.config.max_positions = 24;
  }
  return variants;
}

at::Tensor ids_of(const std::vector<int32_t>& ids) {
  return at::tensor(std::vector<int64_t>(ids.begin(), ids.end()), at::kLong);
}

// Log probabilities of what follows `decoder`, by a forward over all of it.
at::Tensor logprobs_after(const LanguageModel& model, const std::vector<int32_t>& source,
                          const std::vector<int32_t>& decoder) {
  const at::NoGradGuard no_grad;
  const at::Tensor positions = at::arange(static_cast<int64_t>(decoder.size()), at::kLong);
  const MicroBatch batch = token_batch(model, ids_of(decoder), positions, ids_of(source));
  return gathered_logits(model, model.whole().forward({}, batch, nullptr))[-1].log_softmax(0);
}

std::vector<GenerationRequest> t5_requests(int64_t count) {
  std::mt19937 random(11);
  const auto ids = [&](uint64_t most) {
    std::vector<int32_t> all(1 + random() % most);
    for (int32_t& id : all) id = static_cast<int32_t>(random() % 30);
    return all;
  };
  std::vector<GenerationRequest> requests;
  for (int64_t i = 0; i < count; ++i) {
    GenerationRequest& request = requests.emplace_back();
    request.source = ids(20);
    request.prompt = i % 3 == 2 ? ids(4) : std::vector<int32_t>{1};
    request.max_new_tokens = 4 + static_cast<int64_t>(random() % 12);
    request.sampling.seed = random();
    if (i % 4 == 0) request.sampling.top_k = 1;
    if (i % 4 == 1) request.beams = {.width = 3}, request.stop.tokens = {5};
    if (i % 4 == 2) request.choices = 2;
    request.logprobs = i % 4 == 3;
  }
  return requests;
}

void expect_same_answers(const std::vector<GeneratedChoice>& actual,
                         const std::vector<GeneratedChoice>& expected, const std::string& where) {
  ASSERT_EQ(actual.size(), expected.size()) << where;
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].tokens, expected[i].tokens) << where;
    EXPECT_NEAR(actual[i].score, expected[i].score, 1e-9) << where;
    ASSERT_EQ(actual[i].logprobs.size(), expected[i].logprobs.size()) << where;
    for (size_t t = 0; t < actual[i].logprobs.size(); ++t)
      EXPECT_NEAR(actual[i].logprobs[t], expected[i].logprobs[t], 1e-9) << where;
  }
}

TEST(T5Engine, GreedyTokensAreTheArgmaxOfFullForwards) {
  for (const auto& [name, config] : generating_t5s()) {
    const OwnModel own(t5_plan(config, {}));
    const GenerationRequest request{.prompt = {1},
                                    .source = {3, 1, 4, 1, 5, 9, 2, 6},
                                    .max_new_tokens = 15,
                                    .sampling = {.top_k = 1},
                                    .logprobs = true};
    const GeneratedChoice answer = answers_of(own.model, {request}, {}).at(0).at(0);
    ASSERT_EQ(answer.tokens.size(), 15U);
    std::vector<int32_t> decoder = request.prompt;
    for (size_t i = 0; i < answer.tokens.size(); ++i) {
      const at::Tensor logprobs = logprobs_after(own.model, request.source, decoder);
      ASSERT_EQ(logprobs.argmax().item<int64_t>(), answer.tokens[i]) << name;
      EXPECT_NEAR(logprobs.max().item<double>(), answer.logprobs[i], 1e-9) << name;
      decoder.push_back(answer.tokens[i]);
    }
  }
}

// The best of all continuations of three tokens, where the beams are as many as continuations of two.
TEST(T5Engine, WideBeamsFindTheMostProbableText) {
  T5Config config = generating_t5s()[1].config;
  config.vocabulary = 6;
  const OwnModel own(t5_plan(config, {}));
  const std::vector<int32_t> source = {3, 1, 4, 1, 5};
  GenerationRequest request{.prompt = {1}, .source = source, .max_new_tokens = 3};
  request.beams.width = 36;
  const GeneratedChoice found = answers_of(own.model, {request}, {.max_rows = 36}).at(0).at(0);
  double best = -1e9;
  std::vector<int32_t> expected;
  for (int32_t code = 0; code < 216; ++code) {
    std::vector<int32_t> decoder = {1};
    double sum = 0.0;
    for (const int32_t id : {code / 36, code / 6 % 6, code % 6}) {
      sum += logprobs_after(own.model, source, decoder)[id].item<double>();
      decoder.push_back(id);
    }
    if (sum > best) best = sum, expected.assign(decoder.begin() + 1, decoder.end());
  }
  EXPECT_EQ(found.tokens, expected);
  EXPECT_NEAR(found.score, best / 3.0, 1e-9);
}

TEST(T5Engine, AnswersDoNotDependOnTheBatch) {
  for (const auto& [name, config] : generating_t5s()) {
    const OwnModel own(t5_plan(config, {}));
    const std::vector<GenerationRequest> requests = t5_requests(9);
    const std::string where = name;
    const Answers together =
        answers_of(own.model, requests, {.max_rows = 6, .page_size = 4, .prompt_tokens = 3});
    for (size_t i = 0; i < requests.size(); ++i) {
      const Answers alone = answers_of(own.model, {requests[i]}, {.max_rows = 4});
      expect_same_answers(together[i], alone[0], fmt::format("{} {}", where, i));
    }
  }
}

TEST(T5Engine, RanksOfEveryLayoutGenerateTheSameTexts) {
  struct Layout {
    MeshOptions mesh;
    int64_t encoder_stages = 1;
  };
  const std::vector<Layout> layouts = {
      {{.tp = 2}}, {{.pp = 2}}, {{.tp = 2, .pp = 2}}, {{.pp = 4}, 2}, {{.pp = 3}, 1}};
  for (const auto& [name, config] : generating_t5s()) {
    const std::vector<GenerationRequest> requests = t5_requests(7);
    const OwnModel own(t5_plan(config, {}));
    const Answers expected = answers_of(own.model, requests, {.max_rows = 5});
    const std::string where = name;
    for (const Layout& layout : layouts) {
      run_ranks(layout.mesh, [&, &variant = config](const Mesh& mesh) {
        ParameterSet parameters({.dtype = at::kDouble, .seed = 9});
        const Group& pipeline = mesh.group(Axis::pp);
        PipelineLayoutOptions options{.layers = variant.encoder.layers + variant.decoder.layers,
                                      .stages = pipeline.size};
        if (pipeline.size > 1)
          options.split = PipelineSplit{.layers = variant.encoder.layers, .stages = layout.encoder_stages};
        const LanguageModel model =
            language_model(t5_plan(variant, {}), parameters,
                           {.tensor_parallel = mesh.group(Axis::tp),
                            .pipeline = {.chunks = pipeline_layout(options).chunks_of_stage(pipeline.rank),
                                         .group = pipeline,
                                         .links = mesh.pipeline_links()}});
        for (const GenerationResult& result : ranked_answers(model, mesh, requests))
          expect_same_answers(result.choices, expected.at(result.id), where);
      });
    }
  }
}

TEST(T5Engine, SourcesTakePagesUntilTheirAnswerIsComplete) {
  const OwnModel own(t5_plan(generating_t5s()[1].config, {}));
  SingleHostGroup ranks;
  Engine engine(own.model, {.max_rows = 1, .longest = 8, .longest_source = 8, .page_size = 4}, ranks);
  ASSERT_EQ(engine.load().pages, 7);
  engine.submit({.prompt = {1}, .source = {3, 1, 4, 1, 5}, .max_new_tokens = 6});
  ASSERT_TRUE(engine.step());
  EXPECT_EQ(engine.load().used_pages, 4);  // two of the source, two of the answer
  while (engine.step()) {
  }
  EXPECT_EQ(engine.load().used_pages, 0);
  engine.submit({.prompt = {1}, .source = std::vector<int32_t>(24, 2), .max_new_tokens = 3});
  try {
    engine.submit({.prompt = {1}, .source = std::vector<int32_t>(24, 2), .max_new_tokens = 4});
    FAIL() << "a source that does not fit";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("memory for 32 tokens, and there is memory for 28"),
              std::string::npos)
        << error.what();
  }
}

TEST(T5Engine, RejectsBadSources) {
  const OwnModel own(t5_plan(generating_t5s()[0].config, {}));
  SingleHostGroup ranks;
  Engine engine(own.model, {}, ranks);
  const auto problem = [&](const std::vector<int32_t>& source) -> std::string {
    try {
      engine.submit({.prompt = {1}, .source = source, .max_new_tokens = 2});
    } catch (const UserError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_NE(problem({}).find("the encoder has no tokens"), std::string::npos);
  EXPECT_NE(problem({1000}).find("token 1000"), std::string::npos);
  EXPECT_NE(problem(std::vector<int32_t>(25, 1)).find("25 tokens and the model 24 positions"),
            std::string::npos);
}

}  // namespace
}  // namespace teratron
