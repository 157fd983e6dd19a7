// Permutation and experts in fp64 against a loop over tokens in plain tensor operations.
#include "teratron/nn/moe/experts.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "teratron/nn/moe/token_dispatcher.h"
#include "teratron/testing/fixtures.h"

namespace teratron {
namespace {

constexpr int64_t tokens = 11, hidden = 6, width = 5, experts_count = 4, topk = 2, capacity = 9;

at::Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::kDouble);
}

struct Case {
  const char* name;
  Activation activation;
  bool bias;
  bool drops;
  bool pads = false;
};

at::Tensor activate(const at::Tensor& z, Activation activation) {
  if (activation == Activation::squared_relu) return z.clamp_min(0).square();
  const std::vector<at::Tensor> halves = z.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

using Leaves = std::map<std::string, at::Tensor>;

at::Tensor expert_output(const Leaves& leaves, const Case& c, int64_t e,
                         const std::pair<at::Tensor, at::Tensor>& row) {
  const auto& [x, p] = row;
  const std::string prefix = "mlp.experts." + std::to_string(e) + ".";
  at::Tensor z = leaves.at(prefix + "linear_fc1.weight").matmul(x);
  if (c.bias) z = z + leaves.at(prefix + "linear_fc1.bias");
  at::Tensor y = leaves.at(prefix + "linear_fc2.weight").matmul(activate(z, c.activation));
  if (c.bias) y = y + leaves.at(prefix + "linear_fc2.bias");
  return y * p;
}

struct Inputs {
  at::Tensor x;
  Routing routing;
  at::Tensor kept;
};

at::Tensor loop_over_tokens(const Leaves& leaves, const Case& c, const Inputs& in) {
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < tokens; ++t) {
    at::Tensor sum = at::zeros({hidden}, at::kDouble);
    for (int64_t k = 0; k < topk; ++k) {
      if (in.kept.defined() && !in.kept[t][k].item<bool>()) continue;
      const int64_t expert = in.routing.experts_TK[t][k].item<int64_t>();
      sum = sum + expert_output(leaves, c, expert, {in.x[t], in.routing.probs_TK[t][k]});
    }
    rows.push_back(sum);
  }
  return at::stack(rows);
}

class ExpertsTest : public ::testing::TestWithParam<Case> {};

TEST_P(ExpertsTest, EqualALoopOverTokens) {
  const Case& c = GetParam();
  ParameterSet set({.dtype = at::kDouble});
  Experts experts(Scope(set, "mlp"),
                  {.experts = experts_count,
                   .hidden = hidden,
                   .ffn_hidden = width,
                   .activation = c.activation,
                   .bias = c.bias,
                   .fc1_init = Init::normal(0.5),
                   .fc2_init = Init::normal(0.5)},
                  {});
  Leaves leaves;
  for (Parameter& parameter : set.all()) {
    if (parameter.name.ends_with("bias")) {
      const at::NoGradGuard no_grad;
      parameter.tensor.copy_(random(parameter.tensor.sizes(), 3 + leaves.size()));
    }
    leaves[parameter.name] = parameter.tensor.detach().clone().requires_grad_(true);
  }
  const at::Tensor x = random({tokens, hidden}, 1).requires_grad_(true);
  const at::Tensor p = random({tokens, topk}, 2).sigmoid().requires_grad_(true);
  // Expert 2 has no tokens.
  at::Tensor chosen = at::arange(tokens, at::kLong).remainder(2).unsqueeze(1).mul(3);
  chosen = at::cat({at::minimum(chosen, at::ones_like(chosen)), at::full({tokens, 1}, 3, at::kLong)}, 1);
  at::Tensor kept = c.drops ? random({tokens, topk}, 5) > -0.5 : at::Tensor();
  if (c.pads) kept[0].fill_(false);  // so that no expert has more than its capacity
  const at::Tensor weight = random({tokens, hidden}, 6);

  const TokenDispatcher dispatcher({.experts = experts_count}, {});
  const at::Tensor y = dispatcher.forward(
      x, {chosen, p}, {kept, c.pads ? capacity : 0},
      {[&](const at::Tensor& rows, const at::Tensor& probs, const Permutation& permutation) {
        if (c.pads) {
          EXPECT_EQ(rows.size(0), experts_count * capacity);
          EXPECT_TRUE(at::equal(permutation.ends_E, at::arange(1, experts_count + 1, at::kInt) * capacity));
        }
        return experts.forward(rows, probs, permutation);
      }});
  (y * weight).sum().backward();
  const at::Tensor dx = x.grad().clone(), dp = p.grad().clone();
  x.mutable_grad() = at::Tensor();
  p.mutable_grad() = at::Tensor();

  const at::Tensor expected = loop_over_tokens(leaves, c, {x, {chosen, p}, kept});
  (expected * weight).sum().backward();
  EXPECT_TRUE(at::allclose(y, expected, 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(dx, x.grad(), 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(dp, p.grad(), 1e-12, 1e-12));
  for (Parameter& parameter : set.all()) {
    const at::Tensor& reference = leaves.at(parameter.name).grad();
    EXPECT_EQ(parameter.pending_grads, 0) << parameter.name;
    EXPECT_TRUE(at::allclose(parameter.main_grad,
                             reference.defined() ? reference : at::zeros_like(parameter.main_grad), 1e-12,
                             1e-12))
        << parameter.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ExpertsTest,
                         ::testing::Values(Case{"swiglu", Activation::swiglu, false, false},
                                           Case{"swiglu_drops", Activation::swiglu, false, true},
                                           Case{"bias", Activation::squared_relu, true, false},
                                           Case{"bias_drops", Activation::squared_relu, true, true},
                                           Case{"padded", Activation::swiglu, false, true, true},
                                           Case{"bias_padded", Activation::squared_relu, true, true, true}),
                         [](const auto& info) { return info.param.name; });

// Rows are sorted by expert, then token; outputs come back as weighted sums (tests/fixtures/moe).
TEST(Permutation, EqualsMegatrons) {
  for (const nlohmann::json& c : testing::read_json(testing::fixture("moe/capacity.json"))) {
    const auto chosen = c["chosen"].get<std::vector<std::vector<int64_t>>>();
    std::vector<int64_t> flat;
    for (const auto& row : chosen) flat.insert(flat.end(), row.begin(), row.end());
    const int64_t count = c["tokens"], experts = c["experts"];
    const nlohmann::json& expected = c["permute"];
    const at::Tensor experts_TK = at::tensor(flat, at::kLong).view({count, -1});
    const Permutation permutation =
        make_permutation(experts_TK, at::Tensor(), {0, experts}).first_rows(experts_TK.numel());
    const at::Tensor rows = permute(at::arange(count, at::kDouble).unsqueeze(1), permutation).flatten();
    const auto tokens_of_rows = expected["token_of_row"].get<std::vector<double>>();
    EXPECT_TRUE(at::equal(rows, at::tensor(tokens_of_rows, at::kDouble)));
    const at::Tensor states = at::arange(3 * count, at::kDouble).view({count, 3});
    const auto probs = expected["prob_of_row"].get<std::vector<double>>();
    const at::Tensor combined = unpermute(
        permute(states, permutation) * at::tensor(probs, at::kDouble).unsqueeze(1), permutation, at::kDouble);
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t h = 0; h < 3; ++h)
        EXPECT_NEAR(combined[t][h].item<double>(), expected["combined"][t][h].get<double>(), 1e-5);
    }
  }
}

}  // namespace
}  // namespace teratron
