// Against what Megatron-LM's functions returned (tests/fixtures/moe), their rules in fp64 beside them.
#include "teratron/nn/moe/routing.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "teratron/nn/moe/load_balancing.h"
#include "teratron/nn/moe/random.h"
#include "teratron/testing/fixtures.h"

namespace teratron {
namespace {

using nlohmann::json;

at::Tensor matrix(const json& rows, at::ScalarType dtype = at::kFloat) {
  std::vector<double> values;
  for (const json& row : rows) {
    for (const json& value : row) values.push_back(value.get<double>());
  }
  return at::tensor(values, at::kDouble).view({static_cast<int64_t>(rows.size()), -1}).to(dtype);
}

std::vector<std::vector<int64_t>> rows_of(const at::Tensor& x) {
  std::vector<std::vector<int64_t>> rows;
  for (int64_t i = 0; i < x.size(0); ++i) {
    const at::Tensor row = x[i].contiguous();
    rows.emplace_back(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel());
  }
  return rows;
}

// [T, E], zero where an expert is not chosen.
at::Tensor dense(const Routing& routing, int64_t experts) {
  return at::zeros({routing.experts_TK.size(0), experts}, routing.probs_TK.options())
      .scatter(1, routing.experts_TK, routing.probs_TK);
}

void expect_close(const at::Tensor& x, const at::Tensor& reference, double tolerance = 1e-5) {
  const double error = (x.to(at::kDouble) - reference.to(at::kDouble)).norm().item<double>();
  EXPECT_LE(error, tolerance * reference.to(at::kDouble).norm().item<double>() + 1e-12);
}

at::Tensor gradient(const at::Tensor& loss, const at::Tensor& x) {
  x.mutable_grad() = at::Tensor();
  loss.backward();
  return x.grad();
}

RoutingOptions options_of(const json& c) {
  const std::string score = c["score_function"];
  const auto number = [&](const char* key, double otherwise) {
    return c[key].is_null() ? otherwise : c[key].get<double>();
  };
  return {.topk = c["topk"],
          .score = score == "softmax"   ? RouterScore::softmax
                   : score == "sigmoid" ? RouterScore::sigmoid
                                        : RouterScore::sqrtsoftplus,
          .pre_softmax = c["pre_softmax"],
          .scaling = number("topk_scaling_factor", 1.0),
          .groups = static_cast<int64_t>(number("num_groups", 0)),
          .group_topk = static_cast<int64_t>(number("group_topk", 0))};
}

at::Tensor bias_of(const json& c) {
  return c["expert_bias"].is_null() ? at::Tensor() : matrix(json::array({c["expert_bias"]})).flatten();
}

TEST(Routing, EqualsMegatron) {
  for (const json& c : testing::read_json(testing::fixture("moe/router.json"))) {
    SCOPED_TRACE(c["score_function"].get<std::string>() + " " + c["topk"].dump() + " of " +
                 c["experts"].dump());
    const at::Tensor logits = matrix(c["logits"]).requires_grad_(true);
    const Routing routing = route(logits, bias_of(c), options_of(c));
    EXPECT_EQ(rows_of(routing.experts_TK), c["chosen"].get<std::vector<std::vector<int64_t>>>());
    const at::Tensor probs = dense(routing, c["experts"]);
    expect_close(probs, matrix(c["probs"]));
    expect_close(gradient((probs * matrix(c["probs_weight"])).sum(), logits), matrix(c["grad_probs"]), 2e-5);
  }
}

TEST(Routing, BalancingLossesEqualMegatrons) {
  for (const json& c : testing::read_json(testing::fixture("moe/router.json"))) {
    SCOPED_TRACE(c["score_function"].get<std::string>() + " " + c["topk"].dump() + " of " +
                 c["experts"].dump());
    const int64_t tokens = c["tokens"], experts = c["experts"], topk = c["topk"], batch = c["seq_aux_batch"];
    const double coefficient = c["aux_coeff"];
    const at::Tensor logits = matrix(c["logits"]).requires_grad_(true);
    const at::Tensor p = normalized_scores(logits, options_of(c).score), chosen = top_experts(p, topk);
    EXPECT_EQ(rows_of(chosen), c["aux_chosen"].get<std::vector<std::vector<int64_t>>>());
    const at::Tensor aux =
        coefficient * load_balancing_loss(p, expert_counts(chosen, experts), {topk, tokens});
    EXPECT_NEAR(aux.item<double>(), c["aux_loss"].get<double>(), 1e-7);
    expect_close(gradient(aux, logits), matrix(c["grad_aux"]), 5e-5);
    const at::Tensor counts =
        at::zeros({tokens / batch, batch, experts}, at::kLong)
            .scatter_(2, chosen.unflatten(0, {-1, batch}), at::ones_like(chosen).unflatten(0, {-1, batch}))
            .sum(0);
    const at::Tensor sequence =
        coefficient * sequence_balancing_loss(p.unflatten(0, {-1, batch}), counts, {topk, tokens / batch});
    EXPECT_NEAR(sequence.item<double>(), c["seq_aux_loss"].get<double>(), 1e-7);
    const at::Tensor z = c["z_coeff"].get<double>() * router_z_loss(logits, tokens);
    EXPECT_NEAR(z.item<double>(), c["z_loss"].get<double>(), 1e-7);
    expect_close(gradient(z, logits), matrix(c["grad_z"]));
  }
}

// Rows cut over ranks: counts are summed, losses and gradients add up.
TEST(Routing, LossesOfShardsAddUp) {
  const at::Tensor logits = at::randn({12, 6}, at::make_generator<at::CPUGeneratorImpl>(1), at::kDouble);
  const at::Tensor all = logits.clone().requires_grad_(true);
  const auto counts = [](const at::Tensor& l) {
    return expert_counts(top_experts(normalized_scores(l, RouterScore::softmax), 2), 6);
  };
  const at::Tensor whole =
      load_balancing_loss(normalized_scores(all, RouterScore::softmax), counts(all), {2, 12}) +
      router_z_loss(all, 12);
  const at::Tensor expected = gradient(whole, all);
  double sum = 0;
  for (const auto& [begin, size] : {std::pair<int64_t, int64_t>{0, 5}, {5, 7}}) {
    const at::Tensor part = logits.narrow(0, begin, size).clone().requires_grad_(true);
    const at::Tensor own =
        load_balancing_loss(normalized_scores(part, RouterScore::softmax), counts(all), {2, 12}) +
        router_z_loss(part, 12);
    expect_close(gradient(own, part), expected.narrow(0, begin, size), 1e-12);
    sum += own.item<double>();
  }
  EXPECT_NEAR(sum, whole.item<double>(), 1e-12);
}

TEST(Routing, TiesGoToTheLowestExpert) {
  const at::Tensor logits = at::tensor({1.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0}).view({2, 4});
  EXPECT_EQ(rows_of(route(logits, {}, {.topk = 2}).experts_TK),
            (std::vector<std::vector<int64_t>>{{1, 2}, {0, 1}}));
  EXPECT_EQ(
      rows_of(route(logits, {}, {.topk = 1, .pre_softmax = true, .groups = 2, .group_topk = 1}).experts_TK),
      (std::vector<std::vector<int64_t>>{{1}, {0}}));
}

TEST(Routing, SinkhornEqualsMegatron) {
  for (const json& c : testing::read_json(testing::fixture("moe/sinkhorn.json"))) {
    const at::Tensor logits = matrix(c["logits"]), plan = sinkhorn(logits);
    expect_close(plan, matrix(c["plan"]));
    const Routing routing = route_to(logits, top_experts(plan, c["topk"]));
    EXPECT_EQ(rows_of(routing.experts_TK), c["chosen"].get<std::vector<std::vector<int64_t>>>());
    expect_close(dense(routing, c["experts"]), matrix(c["probs"]));
  }
}

TEST(Routing, ExpertBiasEqualsMegatrons) {
  for (const json& c : testing::read_json(testing::fixture("moe/expert_bias.json"))) {
    const at::Tensor bias = at::zeros({c["experts"].get<int64_t>()});
    for (const json& step : c["steps"]) {
      const at::Tensor counts = matrix(json::array({step["tokens_per_expert"]})).flatten();
      update_expert_bias_(bias, counts, c["rate"]);
      expect_close(bias, matrix(json::array({step["bias_after"]})).flatten(), 1e-6);
    }
  }
}

std::vector<std::vector<int64_t>> tokens_of_experts(const Routing& routing, const at::Tensor& kept,
                                                    int64_t experts) {
  std::vector<std::vector<int64_t>> tokens(static_cast<size_t>(experts));
  for (int64_t t = 0; t < kept.size(0); ++t) {
    for (int64_t k = 0; k < kept.size(1); ++k) {
      if (kept[t][k].item<bool>()) tokens[routing.experts_TK[t][k].item<int64_t>()].push_back(t);
    }
  }
  return tokens;
}

TEST(Routing, DropsEqualMegatrons) {
  for (const json& c : testing::read_json(testing::fixture("moe/capacity.json"))) {
    const int64_t experts = c["experts"], topk = c["topk"];
    const Routing routing =
        route(matrix(c["logits"]), {}, {.topk = topk, .pre_softmax = c["pre_softmax"].get<bool>()});
    EXPECT_EQ(rows_of(routing.experts_TK), c["chosen"].get<std::vector<std::vector<int64_t>>>());
    const int64_t capacity = expert_capacity(c["tokens"], topk, experts, c["capacity_factor"]);
    EXPECT_EQ(capacity, c["capacity"].get<int64_t>());
    const at::Tensor kept = kept_within_capacity(routing, {experts, capacity, DropPolicy::probs});
    const json& probs = c["policies"]["probs"];
    EXPECT_EQ(tokens_of_experts(routing, kept, experts),
              probs["tokens_of_expert"].get<std::vector<std::vector<int64_t>>>());
    expect_close(dense({routing.experts_TK, routing.probs_TK * kept}, experts), matrix(probs["probs"]));
    const at::Tensor first = kept_within_capacity(routing, {experts, capacity, DropPolicy::position});
    EXPECT_EQ(tokens_of_experts(routing, first, experts),
              c["policies"]["position_first"]["tokens_of_expert"].get<std::vector<std::vector<int64_t>>>());
  }
}

TEST(Routing, DropsTheLastOfEqualTokens) {
  const Routing routing{at::zeros({4, 1}, at::kLong), at::full({4, 1}, 0.5)};
  const at::Tensor kept = kept_within_capacity(routing, {2, 3, DropPolicy::probs});
  EXPECT_TRUE(at::equal(kept.flatten(), at::tensor({1, 1, 1, 0}).to(at::kBool)));
}

TEST(Routing, RandomRowsArePhilox) {
  const RandomKey key{0x123456789ABCDEF0u, 0xFEDCBA9876543210u};
  const std::vector<int64_t> rows{7, 0, (int64_t{1} << 34) + 5};
  constexpr int64_t columns = 6;
  const at::Tensor x = uniform_rows(key, at::tensor(rows, at::kLong), columns);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const uint64_t element = static_cast<uint64_t>(rows[r]) * 8 + static_cast<uint64_t>(c);
      EXPECT_EQ(x[r][c].item<float>(), uniform_from(philox(key, element / 4).word[element % 4]));
    }
  }
}

}  // namespace
}  // namespace teratron
