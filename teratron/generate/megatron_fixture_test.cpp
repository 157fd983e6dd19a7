// Megatron-LM's recorded answers. Its models there have logits(next | token t, position p) = A[t] + B[p % 5].
#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/testing/fixtures.h"
#include "teratron/testing/generation/generated_answers.h"

namespace teratron {
namespace {

using testing::fixture;
using testing::read_json;

class TableModel : public Model {
 public:
  TableModel(const at::Tensor& of_token, const at::Tensor& of_position)
      : Model({}), of_token_(of_token), of_position_(of_position) {}
  Activations forward(const Activations&, const MicroBatch& batch, LayerStates*) override {
    return {
        {"hidden", of_token_.index({batch["tokens"]}) + of_position_.index({batch["sequence_index"] % 5})}};
  }
  at::Tensor logits(const Activations& output) override { return output["hidden"]; }

 private:
  at::Tensor of_token_, of_position_;
};

at::Tensor matrix(const nlohmann::json& rows) {
  std::vector<at::Tensor> all;
  for (const nlohmann::json& row : rows) all.push_back(at::tensor(row.get<std::vector<double>>()));
  return at::stack(all);
}

LanguageModel table_model(const nlohmann::json& c) {
  const int64_t vocabulary = c["vocab"];
  at::Tensor of_token, of_position = at::zeros({5, vocabulary}, at::kDouble);
  if (c.contains("A")) {
    of_token = matrix(c["A"]);
    of_position = matrix(c["B"]);
  } else {
    of_token = at::full({vocabulary, vocabulary}, c["default"].get<double>(), at::kDouble);
    for (const nlohmann::json& entry : c["entries"])
      of_token[entry[0].get<int64_t>()][entry[1].get<int64_t>()] = entry[2].get<double>();
  }
  LanguageModel model{.vocabulary = vocabulary, .max_positions = 100, .dtype = at::kDouble};
  model.chunks.push_back(std::make_unique<TableModel>(of_token, of_position));
  return model;
}

std::vector<GeneratedChoice> run_one(const LanguageModel& model, const GenerationRequest& request) {
  return answers_of(model, {request}, {.max_rows = 8, .prompt_tokens = 2}).at(0);
}

struct Fixture : ::testing::Test {
  nlohmann::json file = read_json(fixture("models/generation.json"));
  template <typename Check>
  void each(const std::string& kind, const Check& check) {
    int64_t count = 0;
    for (const nlohmann::json& run : file["runs"]) {
      if (run["kind"] != kind) continue;
      const LanguageModel model = table_model(file["models"][run["model"].get<std::string>()]);
      check(model, run);
      ++count;
    }
    EXPECT_GT(count, 2);
  }
};

std::vector<int32_t> whole(const GenerationRequest& request, const GeneratedChoice& choice) {
  std::vector<int32_t> all = request.prompt;
  all.insert(all.end(), choice.tokens.begin(), choice.tokens.end());
  return all;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected, size_t count) {
  ASSERT_GE(actual.size(), count);
  for (size_t i = 0; i < count; ++i) EXPECT_NEAR(actual[i], expected.at(i), 2e-6) << i;
}

// Megatron-LM pads all rows to the longest prompt + tokens_to_generate; here each ends where it would alone.
TEST_F(Fixture, GreedyTokensAndLogProbabilities) {
  each("greedy", [](const LanguageModel& model, const nlohmann::json& run) {
    for (size_t row = 0; row < run["prompts"].size(); ++row) {
      GenerationRequest request{.prompt = run["prompts"][row],
                                .max_new_tokens = run["tokens_to_generate"],
                                .sampling = {.top_k = 1},
                                .logprobs = true};
      if (run.value("early_termination", false)) request.stop.tokens = {run.value("eod", 0)};
      const GeneratedChoice choice = run_one(model, request).at(0);
      const std::vector<int32_t> expected = run["tokens"][row], tokens = whole(request, choice);
      ASSERT_LE(tokens.size(), expected.size()) << run;
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin())) << run;
      const auto recorded = run["log_probs"][row].size();
      expect_near(choice.logprobs, run["log_probs"][row], std::min(recorded, tokens.size() - 1));
    }
  });
}

TEST_F(Fixture, ScoresOfPrompts) {
  each("score", [](const LanguageModel& model, const nlohmann::json& run) {
    for (size_t row = 0; row < run["prompts"].size(); ++row) {
      const GenerationRequest request{.prompt = run["prompts"][row], .max_new_tokens = 0, .logprobs = true};
      const GeneratedChoice choice = run_one(model, request).at(0);
      EXPECT_EQ(choice.logprobs.size(), request.prompt.size() - 1);
      expect_near(choice.logprobs, run["log_probs"][row], request.prompt.size() - 1);
    }
  });
}

TEST_F(Fixture, BeamsAndTheirScores) {
  each("beam", [](const LanguageModel& model, const nlohmann::json& run) {
    const GenerationRequest request{
        .prompt = run["prompt"],
        .max_new_tokens = run["tokens_to_generate"],
        .stop = {.tokens = {run["stop_token"].get<int32_t>()}},
        .beams = {.width = run["beam_width"], .length_penalty = run["length_penalty"]},
        .choices = run["beam_width"]};
    const std::vector<GeneratedChoice> choices = run_one(model, request);
    ASSERT_EQ(choices.size(), run["scores"].size()) << run;
    for (size_t i = 0; i < choices.size(); ++i) {
      EXPECT_NEAR(choices[i].score, run["scores"][i].get<double>(), 2e-6) << run;
      std::vector<int32_t> tokens = whole(request, choices[i]);
      tokens.resize(run["tokens"][i].size(), 0);  // ends with the end of document
      EXPECT_EQ(tokens, run["tokens"][i].get<std::vector<int32_t>>()) << run;
    }
  });
}

TEST_F(Fixture, StopRulesOnNewlines) {
  each("stop", [](const LanguageModel& model, const nlohmann::json& run) {
    const nlohmann::json& options = run["options"];
    for (size_t row = 0; row < run["prompts"].size(); ++row) {
      const GenerationRequest request{
          .prompt = run["prompts"][row],
          .max_new_tokens = run["tokens_to_generate"],
          .sampling = {.top_k = 1},
          .stop = {.tokens = {0},
                   .texts = {},
                   .on_eol = options.value("stop_on_eol", false),
                   .on_double_eol = options.value("stop_on_double_eol", false)},
          .prevent_newline_after_colon = options.value("prevent_newline_after_colon", false)};
      const GeneratedChoice choice = run_one(model, request).at(0);
      const std::vector<int32_t> expected = run["tokens"][row], tokens = whole(request, choice);
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin(),
                             expected.begin() + std::min<int64_t>(tokens.size(), expected.size())))
          << run;
      const auto alone = request.prompt.size() + static_cast<size_t>(request.max_new_tokens);
      EXPECT_EQ(tokens.size(), std::min(run["lengths"][row].get<size_t>(), alone)) << run;
    }
  });
}

TEST(BeamHypotheses, KeepMegatronsBest) {
  for (const nlohmann::json& c : read_json(fixture("models/beam_hypotheses.json"))) {
    BeamHypotheses hypotheses(c["num_beams"], c["length_penalty"]);
    for (const nlohmann::json& entry : c["trace"]) {
      hypotheses.add({entry["add"][0].get<int32_t>()}, entry["add"][1], entry["add"][2], "stop");
      EXPECT_NEAR(hypotheses.worst(), entry["worst"].get<double>(), 1e-7);
      ASSERT_EQ(hypotheses.all().size(), entry["beams"].size());
      for (size_t i = 0; i < entry["beams"].size(); ++i)
        EXPECT_EQ(hypotheses.all()[i].tokens[0], entry["beams"][i][1].get<int32_t>());
      EXPECT_EQ(hypotheses.is_done(entry["query"][0], entry["query"][1]), entry["is_done"].get<bool>());
    }
  }
}

}  // namespace
}  // namespace teratron
