#include "teratron/generate/engine.h"

#include <algorithm>
#include <mutex>
#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"
#include "teratron/generate/model_ranks.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/pipeline/pipeline_layout.h"
#include "teratron/testing/generation/generated_answers.h"
#include "teratron/testing/generation/letter_tokenizer.h"
#include "teratron/testing/generation/random_requests.h"
#include "teratron/testing/small_config.h"

namespace teratron {
namespace {

GPTConfig config() {
  GPTConfig config = small_config();
  config.max_positions = 48;
  config.position = PositionEmbedding::rope;
  config.init_std = 0.3;
  return config;
}

std::vector<int32_t> tokens_of(const LanguageModel& model, const GenerationRequest& request) {
  return answers_of(model, {request}, {.max_rows = 4}).at(0).at(0).tokens;
}

std::vector<std::pair<const char*, GPTConfig>> options_that_train() {
  GPTConfig windows = config(), alibi = config(), norms = config(), learned = config(), plain = config();
  windows.windows = {3, 0, 5, 3};
  alibi.position = PositionEmbedding::alibi;
  norms.qk_norm = true;
  norms.query_groups = 4;
  norms.residual_after_norm = true;
  learned.position = PositionEmbedding::learned_absolute;
  learned.query_key_layer_scaling = true;
  plain.query_groups = 1;
  plain.qkv_bias = true;
  plain.rope.percent = 0.5;
  plain.rope.interleaved = true;
  plain.tied_embeddings = false;
  GPTConfig scaled = config();
  scaled.rope.llama3_factor = 4.0;
  return {{"groups", config()}, {"windows", windows}, {"alibi", alibi},  {"norms", norms},
          {"learned", learned}, {"plain", plain},     {"scaled", scaled}};
}

TEST(Engine, GreedyTokensAreTheArgmaxOfFullForwards) {
  for (const auto& [name, options] : options_that_train()) {
    const OwnModel own(gpt_plan(options, {}));
    std::vector<int64_t> ids = {3, 1, 4, 1, 5};
    const GenerationRequest request{
        .prompt = {3, 1, 4, 1, 5}, .max_new_tokens = 20, .sampling = {.top_k = 1}};
    const std::vector<int32_t> tokens = tokens_of(own.model, request);
    ASSERT_EQ(tokens.size(), 20U);
    for (const int32_t id : tokens) {
      ASSERT_EQ(logits_of(own.model, ids)[-1][0].argmax().item<int64_t>(), id) << name;
      ids.push_back(id);
    }
  }
}

TEST(Engine, EndsAtStopTokensAndAtTheLastPosition) {
  const OwnModel own(gpt_plan(config(), {}));
  GenerationRequest request{.prompt = {3, 1, 4}, .max_new_tokens = 100, .sampling = {.top_k = 1}};
  const GeneratedChoice whole = answers_of(own.model, {request}, {}).at(0).at(0);
  EXPECT_EQ(whole.tokens.size(), 45U);
  EXPECT_EQ(whole.finish_reason, "length");
  request.stop.tokens = {whole.tokens[3]};
  const GeneratedChoice cut = answers_of(own.model, {request}, {}).at(0).at(0);
  EXPECT_EQ(cut.tokens.back(), whole.tokens[3]);
  EXPECT_LE(cut.tokens.size(), 4U);
  EXPECT_EQ(cut.finish_reason, "stop");
}

TEST(Engine, AnswersDoNotDependOnBatchPagingOrOrderOfArrival) {
  const OwnModel own(gpt_plan(config(), {}));
  std::mt19937 random(17);
  for (int64_t round = 0; round < 6; ++round) {
    const std::vector<GenerationRequest> requests = random_requests(random, 9);
    Answers alone;
    for (const GenerationRequest& request : requests)
      alone.push_back(answers_of(own.model, {request}, letter_settings({.max_rows = 8})).at(0));
    // They join while others are generated, some wait for memory, and one is cancelled.
    SingleHostGroup ranks;
    const int64_t page_size = int64_t{1} << (random() % 4);
    Engine engine(own.model,
                  letter_settings({.max_rows = 4 + static_cast<int64_t>(random() % 4),
                                   .longest = 20 + static_cast<int64_t>(random() % 28),
                                   .page_size = page_size,
                                   .prompt_tokens = 2 + static_cast<int64_t>(random() % 20)}),
                  ranks);
    std::vector<int64_t> order(requests.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    std::shuffle(order.begin(), order.end(), random);
    std::map<int64_t, int64_t> request_of;
    std::vector<GenerationResult> results;
    size_t next = 0;
    const int64_t cancelled = engine.submit({.prompt = {1, 2}, .max_new_tokens = 30});
    while (next < order.size() || !engine.idle()) {
      if (next < order.size() && (random() % 3 == 0 || engine.idle())) {
        try {
          request_of[engine.submit(requests[order[next]])] = order[next];
        } catch (const UserError&) {  // more than memory holds
          alone[order[next]].clear();
        }
        ++next;
      }
      engine.step();
      if (next == 2) engine.cancel(cancelled);
      for (GenerationResult& result : engine.take_results()) results.push_back(std::move(result));
    }
    EXPECT_EQ(results.size(), request_of.size() + 1);
    for (const GenerationResult& result : results) {
      if (result.id != cancelled) expect_same(result.choices, alone[request_of.at(result.id)], result.id);
    }
  }
}

// Prompts that are only scored, one of them longer than the model's positions, beside texts.
TEST(Engine, ScoresPromptsBesideTexts) {
  const OwnModel own(gpt_plan(config(), {}));
  std::mt19937 random(23);
  std::vector<GenerationRequest> requests = random_requests(random, 12);
  for (size_t i = 0; i < requests.size(); i += 2) {
    GenerationRequest scored{.max_new_tokens = 0, .logprobs = true, .top_logprobs = 2};
    for (size_t t = 0; t < (i == 0 ? 49 : 2 + random() % 40); ++t)
      scored.prompt.push_back(static_cast<int32_t>(random() % 37));
    scored.logprobs_from = 1 + static_cast<int64_t>(random() % (scored.prompt.size() - 1));
    requests[i] = scored;
  }
  Answers alone;
  for (const GenerationRequest& request : requests)
    alone.push_back(answers_of(own.model, {request}, letter_settings({.max_rows = 8})).at(0));
  const Answers together =
      answers_of(own.model, requests, letter_settings({.max_rows = 8, .prompt_tokens = 11}));
  for (size_t i = 0; i < requests.size(); ++i) {
    expect_same(together[i], alone[i], static_cast<int64_t>(i));
    if (i % 2 == 1) continue;
    const GenerationRequest& request = requests[i];
    const std::vector<int64_t> inputs(request.prompt.begin(), request.prompt.end() - 1);
    const at::Tensor logprobs = logits_of(own.model, inputs).squeeze(1).log_softmax(-1);
    const GeneratedChoice& choice = together[i].at(0);
    ASSERT_EQ(choice.logprobs.size(), request.prompt.size() - request.logprobs_from);
    for (size_t t = 0; t < choice.logprobs.size(); ++t) {
      const auto position = static_cast<int64_t>(t) + request.logprobs_from - 1;
      EXPECT_NEAR(choice.logprobs[t], logprobs[position][request.prompt[position + 1]].item<double>(), 1e-9);
      EXPECT_EQ(choice.top[t].at(0).id, logprobs[position].argmax().item<int64_t>());
    }
  }
}

TEST(Engine, StreamsTheTokensOfEachAnswer) {
  const OwnModel own(gpt_plan(config(), {}));
  std::vector<std::vector<int32_t>> streamed(2);
  const GenerationRequest request{.prompt = {5, 6},
                                  .max_new_tokens = 7,
                                  .choices = 2,
                                  .on_token = [&](int64_t choice, const auto& token) {
                                    streamed[choice].push_back(token.id);
                                    EXPECT_EQ(token.finish_reason,
                                              streamed[choice].size() == 7 ? "length" : "");
                                  }};
  const std::vector<GeneratedChoice> choices = answers_of(own.model, {request}, {}).at(0);
  EXPECT_EQ(streamed[0], choices[0].tokens);
  EXPECT_EQ(streamed[1], choices[1].tokens);
  EXPECT_NE(choices[0].tokens, choices[1].tokens);
}

// Both of the prompt and of the answer, beside a request that asks for none.
TEST(Engine, TheMostProbableTokensAreThoseOfTheLogits) {
  const OwnModel own(gpt_plan(config(), {}));
  std::vector<GeneratedToken> streamed;
  const GenerationRequest asks{.prompt = {5, 6, 7},
                               .max_new_tokens = 4,
                               .logprobs = true,
                               .top_logprobs = 3,
                               .on_token = [&](int64_t, const auto& token) { streamed.push_back(token); }};
  const GenerationRequest plain{.prompt = {5, 6, 7}, .max_new_tokens = 4};
  const Answers answers = answers_of(own.model, {asks, plain}, {});
  const GeneratedChoice& choice = answers[0][0];
  EXPECT_EQ(choice.tokens, answers[1][0].tokens);
  EXPECT_TRUE(answers[1][0].top.empty());
  ASSERT_EQ(choice.top.size(), choice.logprobs.size());
  ASSERT_EQ(choice.top.size(), 6U);
  std::vector<int64_t> ids = {5, 6, 7};
  ids.insert(ids.end(), choice.tokens.begin(), choice.tokens.end());
  const at::Tensor logprobs = logits_of(own.model, ids).squeeze(1).log_softmax(1);
  for (int64_t i = 0; i < 6; ++i) {
    const auto [best, best_ids] = logprobs[i].topk(3);
    ASSERT_EQ(choice.top[i].size(), 3U);
    for (int64_t k = 0; k < 3; ++k) {
      EXPECT_EQ(choice.top[i][k].id, best_ids[k].item<int64_t>());
      EXPECT_NEAR(choice.top[i][k].logprob, best[k].item<double>(), 1e-9);
    }
    EXPECT_NEAR(choice.logprobs[i], logprobs[i][ids[i + 1]].item<double>(), 1e-9);
  }
  ASSERT_EQ(streamed.size(), 4U);
  EXPECT_EQ(streamed[3].top[0].id, choice.top[5][0].id);
  EXPECT_EQ(streamed[3].logprob, choice.logprobs[5]);
}

TEST(Engine, RejectsAllThatIsWrongWithARequest) {
  const OwnModel own(gpt_plan(config(), {}));
  SingleHostGroup ranks;
  Engine engine(own.model, {.max_rows = 2, .cache_bytes = 3 << 13}, ranks);
  const auto problems = [&](const GenerationRequest& request) -> size_t {
    try {
      engine.submit(request);
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::config);
      return error.problems().size();
    }
    return 0;
  };
  EXPECT_EQ(problems({.prompt = std::vector<int32_t>(48, 1)}), 1U);
  EXPECT_EQ(problems({.prompt = {}}), 1U);
  EXPECT_EQ(problems({.prompt = {40, 1}, .sampling = {.temperature = 0.0, .top_k = 3, .top_p = 0.5}}), 3U);
  EXPECT_EQ(problems({.prompt = {1}, .max_new_tokens = 0}), 1U);
  EXPECT_EQ(problems({.prompt = {1}, .beams = {.width = 9}}), 1U);
  EXPECT_EQ(problems({.prompt = {1}, .stop = {.texts = {"x"}}}), 1U);
  EXPECT_EQ(problems({.prompt = {1}, .logprobs = true, .top_logprobs = 21}), 1U);
  EXPECT_EQ(problems({.prompt = {1}, .max_new_tokens = 4, .choices = 3}), 1U);
  EXPECT_EQ(problems({.prompt = {1}, .max_new_tokens = 40}), 1U) << "more than memory holds";
  EXPECT_EQ(problems({.prompt = {1}, .max_new_tokens = 4}), 0U);
}

}  // namespace
}  // namespace teratron
