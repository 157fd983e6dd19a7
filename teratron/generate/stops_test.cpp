// Where answers end.
#include <algorithm>

#include <gtest/gtest.h>

#include "teratron/generate/texts.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/testing/generation/generated_answers.h"
#include "teratron/testing/generation/letter_tokenizer.h"
#include "teratron/testing/small_config.h"

namespace teratron {
namespace {

GPTConfig stop_config() {
  GPTConfig config = small_config();
  config.max_positions = 48;
  config.position = PositionEmbedding::rope;
  config.init_std = 0.3;
  return config;
}

std::vector<int32_t> greedy_tokens(const LanguageModel& model, const GenerationRequest& request) {
  return answers_of(model, {request}, {.max_rows = 4}).at(0).at(0).tokens;
}

TEST(Engine, BeamsEndAtTokensNewlinesAndTexts) {
  const OwnModel own(gpt_plan(stop_config(), {}));
  const LetterTokenizer letters;
  GenerationRequest request{.prompt = {3, 1, 4}, .max_new_tokens = 20, .beams = {.width = 3}, .choices = 3};
  const auto search = [&](const StopRules& stop) {
    request.stop = stop;
    return answers_of(own.model, {request}, letter_settings({.max_rows = 4})).at(0);
  };
  for (const GeneratedChoice& choice : search({})) {
    EXPECT_EQ(choice.tokens.size(), 20U);
    EXPECT_EQ(choice.finish_reason, "length");
  }
  for (const bool two : {false, true}) {
    for (const GeneratedChoice& choice : search({.tokens = {5, 9}, .on_eol = !two, .on_double_eol = two})) {
      const auto is_end = [&](size_t i) {
        const bool newline = choice.tokens[i] == 28, before = i > 0 && choice.tokens[i - 1] == 28;
        return choice.tokens[i] == 29 || (newline && (before || !two));
      };
      for (size_t i = 0; i + 1 < choice.tokens.size(); ++i) EXPECT_FALSE(is_end(i));
      EXPECT_EQ(choice.finish_reason == "stop", is_end(choice.tokens.size() - 1));
    }
  }
  for (const GeneratedChoice& choice : search({.tokens = {5, 9}, .texts = {"b", "xc"}})) {
    const std::string text = letters.decode(choice.tokens);
    const size_t found = std::min(text.find('b'), text.find("xc"));
    EXPECT_TRUE(found == text.npos || text.substr(found).size() <= 2) << text;
    EXPECT_EQ(std::count(choice.tokens.begin(), choice.tokens.end(), 5), 0);
    EXPECT_EQ(answer_text(letters, request, choice), text.substr(0, found));
  }
}

// Every token ends an answer, so that a search finds fewer answers than it has beams.
TEST(Engine, SearchesMayHaveFewerAnswers) {
  const OwnModel own(gpt_plan(stop_config(), {}));
  GenerationRequest request{.prompt = {3, 1}, .max_new_tokens = 9, .beams = {.width = 4}, .choices = 4};
  for (int32_t token = 0; token < 37; ++token) request.stop.tokens.push_back(token);
  const std::vector<GeneratedChoice> choices = answers_of(own.model, {request}, {.max_rows = 4}).at(0);
  EXPECT_GE(choices.size(), 1U);
  for (const GeneratedChoice& choice : choices) EXPECT_TRUE(choice.tokens.empty());
}

TEST(Engine, TheLowestTemperaturesAreGreedy) {
  const OwnModel own(gpt_plan(stop_config(), {}));
  GenerationRequest greedy{.prompt = {3, 1, 4}, .max_new_tokens = 12, .sampling = {.top_k = 1}};
  const std::vector<int32_t> expected = greedy_tokens(own.model, greedy);
  for (const double temperature : {1e-6, 1e-40, 1e-310, 5e-324}) {
    greedy.sampling = {.temperature = temperature};
    EXPECT_EQ(greedy_tokens(own.model, greedy), expected) << temperature;
    greedy.sampling.top_p = 0.9;
    EXPECT_EQ(greedy_tokens(own.model, greedy), expected) << temperature;
  }
}

}  // namespace
}  // namespace teratron
