// Against the recurrence token by token, differentiated by autograd, in f64.
#include "teratron/kernels/delta/delta_rule.h"

#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "teratron/testing/kernels.h"

namespace teratron::delta {
namespace {

at::Tensor unit(const at::Tensor& x) {
  return x / (x.square().sum(-1, true) + 1e-6).sqrt();
}

DeltaRule::Output token_by_token(const DeltaRule& rule) {
  const int64_t sharing = rule.v_BSNV.size(2) / rule.k_BSHK.size(2);
  const at::Tensor q = unit(rule.q_BSHK).repeat_interleave(sharing, 2) / std::sqrt(rule.q_BSHK.size(3));
  const at::Tensor k = unit(rule.k_BSHK).repeat_interleave(sharing, 2);
  at::Tensor S = rule.state_BNKV;
  std::vector<at::Tensor> ys;
  for (int64_t t = 0; t < q.size(1); ++t) {
    const auto at_t = [t](const at::Tensor& x) { return x.select(1, t); };
    if (t > 0 && rule.document_BS.defined()) {
      const at::Tensor same = at_t(rule.document_BS).eq(rule.document_BS.select(1, t - 1));
      S = S * same.view({-1, 1, 1, 1});
    }
    S = S * at_t(rule.g_BSN).exp().unsqueeze(-1).unsqueeze(-1);
    const at::Tensor error = at_t(rule.v_BSNV) - at::einsum("bnkv,bnk->bnv", {S, at_t(k)});
    S = S + at::einsum("bn,bnk,bnv->bnkv", {at_t(rule.beta_BSN), at_t(k), error});
    ys.push_back(at::einsum("bnkv,bnk->bnv", {S, at_t(q)}));
  }
  return {at::stack(ys, 1), S};
}

struct DeltaRuleCase {
  int64_t sequences, tokens, key_heads, sharing, K, V, chunk;
  int64_t documents;  // 0: one, without ids
  double decay;       // mean of -g
};

DeltaRule inputs_of(const DeltaRuleCase& c) {
  const auto options = at::TensorOptions(at::kDouble);
  const int64_t heads = c.key_heads * c.sharing;
  at::manual_seed(c.tokens * 100 + c.K);
  DeltaRule rule{.q_BSHK = at::randn({c.sequences, c.tokens, c.key_heads, c.K}, options) * 3,
                 .k_BSHK = at::randn({c.sequences, c.tokens, c.key_heads, c.K}, options),
                 .v_BSNV = at::randn({c.sequences, c.tokens, heads, c.V}, options),
                 .g_BSN = -at::rand({c.sequences, c.tokens, heads}, options) * 2 * c.decay,
                 .beta_BSN = at::rand({c.sequences, c.tokens, heads}, options) * 2,
                 .state_BNKV = at::randn({c.sequences, heads, c.K, c.V}, options),
                 .chunk = c.chunk};
  if (c.documents > 0)
    rule.document_BS = std::get<0>(at::randint(c.documents, {c.sequences, c.tokens}, at::kLong).sort(1));
  return rule;
}

class GatedDeltaRule : public ::testing::TestWithParam<DeltaRuleCase> {};

TEST_P(GatedDeltaRule, is_the_recurrence) {
  DeltaRule rule = inputs_of(GetParam());
  const std::vector<at::Tensor> leaves = {rule.q_BSHK, rule.k_BSHK,   rule.v_BSNV,
                                          rule.g_BSN,  rule.beta_BSN, rule.state_BNKV};
  const DeltaRule::Output chunked = rule.forward();
  const at::Tensor dy = at::randn_like(chunked.y_BSNV), dstate = at::randn_like(chunked.state_BNKV);
  const DeltaRule::Gradients grads = rule.backward(dy, dstate);
  for (const at::Tensor& leaf : leaves) leaf.requires_grad_(true);
  const DeltaRule::Output expected = token_by_token(rule);
  EXPECT_LT(relative_error(chunked.y_BSNV, expected.y_BSNV), 1e-12);
  EXPECT_LT(relative_error(chunked.state_BNKV, expected.state_BNKV), 1e-12);
  const auto wanted = torch::autograd::grad({expected.y_BSNV, expected.state_BNKV}, leaves, {dy, dstate});
  const std::vector<at::Tensor> got = {grads.dq_BSHK, grads.dk_BSHK,   grads.dv_BSNV,
                                       grads.dg_BSN,  grads.dbeta_BSN, grads.dstate_BNKV};
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_LT(relative_error(got[i], wanted[i]), 1e-11) << "input " << i;
}

INSTANTIATE_TEST_SUITE_P(Shapes, GatedDeltaRule,
                         ::testing::Values(DeltaRuleCase{1, 5, 1, 1, 3, 4, 64, 0, 0.5},
                                           DeltaRuleCase{2, 1, 2, 1, 4, 4, 64, 0, 0.5},
                                           DeltaRuleCase{2, 16, 1, 2, 4, 8, 8, 0, 0.1},
                                           DeltaRuleCase{1, 37, 2, 3, 5, 3, 8, 0, 1.0},
                                           DeltaRuleCase{2, 40, 2, 2, 4, 6, 16, 4, 0.3},
                                           DeltaRuleCase{1, 33, 1, 1, 8, 8, 4, 9, 0.2},
                                           DeltaRuleCase{1, 150, 1, 1, 4, 4, 64, 0, 40.0}));

// Sums of g far below what exp can hold, and none of it overflows.
TEST(GatedDeltaRuleRange, stays_finite_with_steep_decays) {
  DeltaRule rule = inputs_of({1, 128, 1, 1, 8, 8, 64, 0, 800.0});
  const DeltaRule::Output out = rule.forward();
  const DeltaRule::Gradients grads = rule.backward(at::ones_like(out.y_BSNV), {});
  for (const at::Tensor& x : {out.y_BSNV, out.state_BNKV, grads.dq_BSHK, grads.dk_BSHK, grads.dg_BSN})
    EXPECT_TRUE(x.isfinite().all().item<bool>());
}

// What follows a cut goes on from the state before it: the bits of the whole where chunks are the same.
TEST(GatedDeltaRuleState, goes_on_from_a_state) {
  const DeltaRule whole = inputs_of({2, 48, 1, 2, 4, 4, 16, 0, 0.3});
  const DeltaRule::Output expected = whole.forward();
  const auto part = [&](int64_t begin, int64_t end, const at::Tensor& state) {
    DeltaRule rule = whole;
    for (at::Tensor* x : {&rule.q_BSHK, &rule.k_BSHK, &rule.v_BSNV, &rule.g_BSN, &rule.beta_BSN})
      *x = x->slice(1, begin, end);
    rule.state_BNKV = state;
    return rule.forward();
  };
  const DeltaRule::Output first = part(0, 32, whole.state_BNKV), second = part(32, 48, first.state_BNKV);
  EXPECT_TRUE(at::cat({first.y_BSNV, second.y_BSNV}, 1).equal(expected.y_BSNV));
  EXPECT_TRUE(second.state_BNKV.equal(expected.state_BNKV));
}

}  // namespace
}  // namespace teratron::delta
