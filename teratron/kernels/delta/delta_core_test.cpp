// delta_core.h against the mixer of Megatron-LM, and delta_rule.h against the recurrence of three programs.
#include "teratron/kernels/delta/delta_core.h"

#include "teratron/kernels/delta/delta_rule.h"
#include "teratron/testing/kernels.h"
#include "teratron/testing/tensors/shared_fixtures.h"

namespace teratron {
namespace {

using nlohmann::json;
using testing::tensor_of;

constexpr double tolerance_of_fixtures = 1e-10;

// Lengths of documents -> their number for each token [1, T].
at::Tensor document_numbers(const std::vector<int64_t>& lengths) {
  return at::repeat_interleave(at::arange(std::ssize(lengths)), at::tensor(lengths, at::kLong)).unsqueeze(0);
}

// The gradients of a fixture are also those of the states after each document: one document at a time.
TEST(DeltaRuleFixture, EachDocument) {
  const json cases = testing::shared_fixture("next/linear/delta_rule.json");
  if (cases.is_null()) GTEST_SKIP() << "no fixtures beside the repository";
  for (const json& c : cases) {
    const json& in = c["inputs"];
    int64_t first = 0;
    for (size_t document = 0; document < c["documents"].size(); ++document) {
      const int64_t length = c["documents"][document];
      const auto part = [&](const json& x) { return tensor_of(x).narrow(1, first, length); };
      const auto state = [&](const json& x) {
        return tensor_of(x).narrow(0, static_cast<int64_t>(document), 1);
      };
      const bool starts = in.contains("initial_state") && !in["initial_state"].is_null();
      const delta::DeltaRule rule{.q_BSHK = part(in["q"]),
                                  .k_BSHK = part(in["k"]),
                                  .v_BSNV = part(in["v"]),
                                  .g_BSN = part(in["g"]),
                                  .beta_BSN = part(in["beta"]),
                                  .state_BNKV = starts ? state(in["initial_state"]) : at::Tensor()};
      const auto out = rule.forward();
      EXPECT_LT(relative_error(out.y_BSNV, part(c["out"])), tolerance_of_fixtures);
      EXPECT_LT(relative_error(out.state_BNKV, state(c["final_states"])), tolerance_of_fixtures);
      const auto d = rule.backward(part(c["dout"]), state(c["dfinal_states"]));
      const json& grads = c["grads"];
      EXPECT_LT(relative_error(d.dq_BSHK, part(grads["q"])), tolerance_of_fixtures);
      EXPECT_LT(relative_error(d.dk_BSHK, part(grads["k"])), tolerance_of_fixtures);
      EXPECT_LT(relative_error(d.dv_BSNV, part(grads["v"])), tolerance_of_fixtures);
      EXPECT_LT(relative_error(d.dg_BSN, part(grads["g"])), tolerance_of_fixtures);
      EXPECT_LT(relative_error(d.dbeta_BSN, part(grads["beta"])), tolerance_of_fixtures);
      first += length;
    }
  }
}

// All documents in one row: what reaches each is its own.
TEST(DeltaRuleFixture, PackedDocuments) {
  const json cases = testing::shared_fixture("next/linear/delta_rule.json");
  if (cases.is_null()) GTEST_SKIP() << "no fixtures beside the repository";
  for (const json& c : cases) {
    const json& in = c["inputs"];
    if (in.contains("initial_state") && !in["initial_state"].is_null()) continue;
    const delta::DeltaRule rule{.q_BSHK = tensor_of(in["q"]),
                                .k_BSHK = tensor_of(in["k"]),
                                .v_BSNV = tensor_of(in["v"]),
                                .g_BSN = tensor_of(in["g"]),
                                .beta_BSN = tensor_of(in["beta"]),
                                .document_BS = document_numbers(c["documents"].get<std::vector<int64_t>>())};
    EXPECT_LT(relative_error(rule.forward().y_BSNV, tensor_of(c["out"])), tolerance_of_fixtures);
  }
}

TEST(DeltaCoreFixture, IsMegatronsMixer) {
  const json cases = testing::shared_fixture("next/linear/delta_mixer.json");
  if (cases.is_null()) GTEST_SKIP() << "no fixtures beside the repository";
  for (const json& c : cases) {
    const json& params = c["params"];
    const DeltaOptions options{.key_heads = c["key_heads"],
                               .value_heads = c["value_heads"],
                               .key_dim = c["key_dim"],
                               .value_dim = c["value_dim"],
                               .norm_eps = c["norm_eps"]};
    const DeltaWeights weights{.conv_weight = tensor_of(params["conv1d.weight"]),
                               .dt_bias = tensor_of(params["dt_bias"]),
                               .A_log = tensor_of(params["A_log"]),
                               .norm_weight = tensor_of(params["out_norm.weight"])};
    const at::Tensor x = tensor_of(c["hidden_states"]), in_proj = tensor_of(params["in_proj.weight"]);
    const at::Tensor out_proj = tensor_of(params["out_proj.weight"]), dout = tensor_of(c["dout"]);
    const DeltaInput input{.qkvzba_SB = x.matmul(in_proj.t())};
    const at::Tensor y = delta_forward(input, weights, options).y_SB;
    EXPECT_LT(relative_error(y.matmul(out_proj.t()), tensor_of(c["out"])), tolerance_of_fixtures);
    const DeltaGradients d = delta_backward(dout.matmul(out_proj), {}, input, weights, options);
    const json& grads = c["grads"];
    const auto matches = [&](const char* name, const at::Tensor& actual) {
      EXPECT_LT(relative_error(actual, tensor_of(grads[name])), tolerance_of_fixtures) << name;
    };
    matches("hidden_states", d.dqkvzba_SB.matmul(in_proj));
    matches("in_proj.weight", d.dqkvzba_SB.flatten(0, 1).t().matmul(x.flatten(0, 1)));
    matches("out_proj.weight", dout.flatten(0, 1).t().matmul(y.flatten(0, 1)));
    matches("conv1d.weight", d.weights.conv_weight);
    matches("dt_bias", d.weights.dt_bias);
    matches("A_log", d.weights.A_log);
    matches("out_norm.weight", d.weights.norm_weight);
  }
}

}  // namespace
}  // namespace teratron
