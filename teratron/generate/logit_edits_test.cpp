#include "teratron/generate/logit_edits.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace teratron {
namespace {

// The ids that the logits may give, over many draws, in the order of their number.
std::vector<int64_t> possible(const std::vector<double>& logits, SamplingOptions options,
                              const std::vector<int32_t>& tokens = {0}, size_t prompt = 1) {
  options.joins_filters = true;
  const LogitEdits edits = edits_of(options, tokens, prompt);
  std::vector<int64_t> found(logits.size(), 0);
  for (int draw = 0; draw < 400; ++draw) {
    const bool joint = edits.top_k > 0;
    const std::vector<RowSampling> rows = {{.temperature = options.temperature,
                                            .top_k = joint ? 0 : options.top_k,
                                            .top_p = joint ? 0.0 : options.top_p,
                                            .uniform = (draw + 0.5) / 400.0}};
    const at::Tensor chosen = sample_edited_rows(at::tensor(logits, at::kFloat).unsqueeze(0),
                                                 sampling_parameters(rows), needs_of(rows), {&edits});
    found.at(static_cast<size_t>(chosen[0].item<double>())) += 1;
  }
  return found;
}

std::vector<double> log_of(std::vector<double> probabilities) {
  for (double& each : probabilities) each = std::log(each);
  return probabilities;
}

TEST(LogitEdits, MinPDropsWhatIsFarBelowTheBest) {
  // Half of 0.4 is 0.2.
  EXPECT_EQ(possible(log_of({0.4, 0.3, 0.21, 0.09}), {.min_p = 0.5}),
            (std::vector<int64_t>{176, 132, 92, 0}));
}

TEST(LogitEdits, TopPFollowsTopK) {
  // The first of the two best, 0.5 and 0.25, has two thirds of the mass, which is not yet 0.7.
  EXPECT_EQ(possible(log_of({0.5, 0.25, 0.25 - 0.01, 0.01}), {.top_k = 2, .top_p = 0.7}),
            (std::vector<int64_t>{267, 133, 0, 0}));
  EXPECT_EQ(possible(log_of({0.5, 0.25, 0.25 - 0.01, 0.01}), {.top_k = 2, .top_p = 0.6}),
            (std::vector<int64_t>{400, 0, 0, 0}));
}

TEST(LogitEdits, PenaltiesAreVllms) {
  const std::vector<int32_t> tokens = {0, 1, 2, 2};  // the last three are new
  const LogitEdits edits = edits_of({.presence_penalty = 0.5,
                                     .frequency_penalty = 0.25,
                                     .repetition_penalty = 2.0,
                                     .logit_bias = {{3, 10.0}}},
                                    tokens, 1);
  const std::vector<double> logits = {4.0, -1.0, 2.0, -9.0, 1.0};
  // 4 / 2; -1 * 2 - 0.75; 2 / 2 - 1; -9 + 10; as it is.
  const std::vector<double> expected = {2.0, -2.75, 0.0, 1.0, 1.0};
  for (size_t best = 0; best < logits.size(); ++best) {
    // Raised just above the largest of the others, a token is chosen; just below it, it is not.
    for (const double margin : {0.001, -0.001}) {
      LogitEdits raised = edits;
      double other = -1e9;
      for (size_t i = 0; i < logits.size(); ++i) {
        if (i != best) other = std::max(other, expected[i]);
      }
      bool known = false;
      for (TokenEdit& each : raised.tokens) {
        if (each.id != static_cast<int32_t>(best)) continue;
        each.taken -= other + margin - expected[best];
        known = true;
      }
      if (!known)
        raised.tokens.push_back({.id = static_cast<int32_t>(best), .taken = expected[best] - other - margin});
      const std::vector<RowSampling> rows = {{.top_k = 1, .uniform = 0.5}};
      const at::Tensor chosen = sample_edited_rows(at::tensor(logits, at::kFloat).unsqueeze(0),
                                                   sampling_parameters(rows), needs_of(rows), {&raised});
      EXPECT_EQ(chosen[0].item<double>() == static_cast<double>(best), margin > 0) << best << " " << margin;
    }
  }
}

TEST(LogitEdits, LogProbabilitiesAreThoseOfTheModel) {
  const LogitEdits edits = edits_of({.logit_bias = {{1, 50.0}}}, std::vector<int32_t>{0}, 1);
  SamplingNeeds needs;
  needs.logprobs = true;
  const std::vector<RowSampling> rows = {{.top_k = 1, .uniform = 0.5}};
  const at::Tensor chosen = sample_edited_rows(at::tensor(log_of({0.75, 0.25}), at::kFloat).unsqueeze(0),
                                               sampling_parameters(rows), needs, {&edits});
  EXPECT_EQ(chosen[0].item<double>(), 1.0);
  EXPECT_NEAR(chosen[1].item<double>(), std::log(0.25), 1e-6);
}

}  // namespace
}  // namespace teratron
