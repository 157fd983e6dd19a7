#include "teratron/generate/sampling.h"

#include <map>
#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/testing/fixtures.h"

namespace teratron {
namespace {

using testing::fixture;
using testing::read_json;

std::map<int64_t, double> frequencies(const at::Tensor& logits, const SamplingOptions& options) {
  std::map<int64_t, double> share;
  constexpr int draws = 4000;
  for (int i = 0; i < draws; ++i) share[sample(logits, options, i)] += 1.0 / draws;
  return share;
}

TEST(Sampling, FollowsTheSoftmaxAtTheTemperature) {
  const at::Tensor logits = at::tensor({0.0, 1.0, 2.0, -1.0});
  const at::Tensor expected = (logits / 2.0).softmax(0);
  const auto share = frequencies(logits, {.temperature = 2.0});
  for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(share.at(i), expected[i].item<double>(), 0.03);
}

TEST(Sampling, TopKKeepsTheBest) {
  const auto share = frequencies(at::tensor({0.0, 1.0, 2.0, -1.0}), {.top_k = 2});
  EXPECT_EQ(share.size(), 2U);
  EXPECT_NEAR(share.at(2), 1.0 / (1.0 + std::exp(-1.0)), 0.03);
}

TEST(Sampling, TopPDropsTokensBeyondThatMass) {
  // Probabilities .5 .3 .15 .05: the mass before the third is .8.
  const at::Tensor logits = at::tensor({0.15, 0.5, 0.05, 0.3}).log();
  const auto share = frequencies(logits, {.top_p = 0.79});
  EXPECT_EQ(share.size(), 2U);
  EXPECT_NEAR(share.at(1), 0.5 / 0.8, 0.03);
  EXPECT_EQ(frequencies(logits, {.top_p = 0.81}).size(), 3U);
  EXPECT_EQ(frequencies(logits, {.top_p = 1e-9}).size(), 1U);
}

TEST(Sampling, RejectsWrongValuesTogether) {
  try {
    check_sampling({.temperature = 0.0, .top_k = 3, .top_p = 0.5});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    EXPECT_EQ(error.problems().size(), 2U);
  }
}

TEST(Sampling, DecaysTopPDownToItsBound) {
  const SamplingOptions options{.top_p = 0.9, .top_p_decay = 0.5, .top_p_bound = 0.3};
  EXPECT_DOUBLE_EQ(decayed_top_p(0.9, options), 0.45);
  EXPECT_DOUBLE_EQ(decayed_top_p(0.45, options), 0.3);
  EXPECT_DOUBLE_EQ(decayed_top_p(0.9, {.top_p = 0.9}), 0.9);
}

TEST(Sampling, KeepsWhatMegatronKeeps) {
  for (const nlohmann::json& c : read_json(fixture("models/sampling_filters.json"))) {
    // Megatron-LM's sums in fp32 exceed 1, ours in fp64 do not.
    if (!c.contains("kept") || c.value("top_p", 0.0) == 1.0) continue;
    for (size_t row = 0; row < c["logits"].size(); ++row) {
      const std::vector<double> logits = c["logits"][row];
      const std::vector<int64_t> expected = c["kept"][row];
      const std::vector<RowSampling> rows = {
          {.top_k = c.value("top_k", int64_t{0}), .top_p = c.value("top_p", 0.0)}};
      const at::Tensor filtered =
          filtered_logits(at::tensor(logits).unsqueeze(0), sampling_parameters(rows), needs_of(rows));
      const at::Tensor kept = filtered[0].gt(-INFINITY);
      // Where logits tie at the border, the number of kept ones counts.
      EXPECT_EQ(kept.sum().item<int64_t>(), std::count(expected.begin(), expected.end(), 1)) << c;
      const std::set<double> different(logits.begin(), logits.end());
      if (different.size() < logits.size()) continue;
      EXPECT_TRUE(kept.equal(at::tensor(expected).to(at::kBool))) << c;
    }
  }
}

TEST(Sampling, ARowDoesNotDependOnTheNeedsOfOthers) {
  at::manual_seed(5);
  const at::Tensor logits = at::randn({4, 90});
  const std::vector<RowSampling> rows = {{.uniform = 0.3},
                                         {.top_k = 1, .uniform = 0.9},
                                         {.temperature = 0.7, .top_k = 5, .uniform = 0.6},
                                         {.temperature = 1.3, .top_p = 0.8, .uniform = 0.2}};
  const at::Tensor together = sample_rows(logits, sampling_parameters(rows), needs_of(rows))[0];
  for (int64_t i = 0; i < 4; ++i) {
    const std::vector<RowSampling> own = {rows[i]};
    const at::Tensor alone = sample_rows(logits.narrow(0, i, 1), sampling_parameters(own), needs_of(own))[0];
    EXPECT_EQ(together[i].item<double>(), alone.item<double>()) << i;
  }
}

}  // namespace
}  // namespace teratron
