// Flags of experts and the options that they set.
#include <functional>
#include <set>

#include "teratron/models/transformer/config.h"
#include "teratron/testing/validation.h"

namespace teratron {
namespace {

ExpertsConfig experts_with(const Args& more) {
  Args flags = {"--num-experts", "8"};
  flags.insert(flags.end(), more.begin(), more.end());
  return transformer_config(validated(flags, 2).args).experts;
}

struct FlagCase {
  Args flags;
  std::function<bool(const MoeOptions&)> holds;
};

const std::vector<FlagCase>& flag_cases() {
  using M = const MoeOptions&;
  static const std::vector<FlagCase> all = {
      {{"--moe-ffn-hidden-size", "40"}, [](M m) { return m.experts.ffn_hidden == 40; }},
      {{"--moe-router-topk", "3"}, [](M m) { return m.router.routing.topk == 3; }},
      {{"--moe-router-score-function", "sigmoid"},
       [](M m) { return m.router.routing.score == RouterScore::sigmoid; }},
      {{"--moe-router-score-function", "sqrtsoftplus"},
       [](M m) { return m.router.routing.score == RouterScore::sqrtsoftplus; }},
      {{"--moe-router-pre-softmax"}, [](M m) { return m.router.routing.pre_softmax; }},
      {{"--moe-router-topk-scaling-factor", "2.5"}, [](M m) { return m.router.routing.scaling == 2.5; }},
      {{"--moe-router-num-groups", "4", "--moe-router-group-topk", "2"},
       [](M m) { return m.router.routing.groups == 4 && m.router.routing.group_topk == 2; }},
      {{"--moe-router-num-groups", "4", "--moe-router-group-topk", "2", "--moe-router-group-score-topk", "2"},
       [](M m) { return m.router.routing.group_score_topk == 2; }},
      {{"--moe-router-score-function", "sigmoid", "--moe-router-unnormalized"},
       [](M m) { return !m.router.routing.normalize; }},
      {{"--moe-router-score-function", "sigmoid", "--moe-router-normalize-one"},
       [](M m) { return m.router.routing.normalize_one; }},
      {{"--moe-router-pre-softmax", "--moe-router-least-sum", "0.25"},
       [](M m) { return m.router.routing.least_sum == 0.25; }},
      {{"--moe-apply-probs-on-input"}, [](M m) { return m.inputs_weighted; }},
      {{"--moe-latent-size", "24"}, [](M m) { return m.latent == 24; }},
      {{"--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias"},
       [](M m) { return m.router.expert_bias && m.router.expert_bias_rate == 1e-3; }},
      {{"--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias",
        "--moe-router-bias-update-rate", "0.25"},
       [](M m) { return m.router.expert_bias_rate == 0.25; }},
      {{"--moe-router-dtype", "fp32"}, [](M m) { return m.router.dtype == at::kFloat; }},
      {{"--moe-router-dtype", "fp64"}, [](M m) { return m.router.dtype == at::kDouble; }},
      {{"--moe-aux-loss-coeff", "0.25"}, [](M m) { return m.router.aux_loss == 0.25; }},
      {{"--moe-router-load-balancing-type", "global_aux_loss", "seq_aux_loss", "--moe-aux-loss-coeff", "0.25",
        "0.5"},
       [](M m) { return m.router.global_aux_loss == 0.25 && m.router.seq_aux_loss == 0.5; }},
      {{"--moe-router-load-balancing-type", "sinkhorn"}, [](M m) { return m.router.sinkhorn; }},
      {{"--moe-z-loss-coeff", "0.25"}, [](M m) { return m.router.z_loss == 0.25; }},
      {{"--moe-input-jitter-eps", "0.25"}, [](M m) { return m.router.jitter == 0.25; }},
      {{"--moe-router-force-load-balancing"}, [](M m) { return m.router.force_balance; }},
      {{"--moe-expert-capacity-factor", "1.5"}, [](M m) { return m.router.capacity_factor == 1.5; }},
      {{"--moe-expert-capacity-factor", "1.5", "--moe-token-drop-policy", "position"},
       [](M m) { return m.router.drop_policy == DropPolicy::position; }},
      {{"--moe-expert-capacity-factor", "1.5", "--moe-pad-expert-input-to-capacity"},
       [](M m) { return m.router.pad_to_capacity; }},
      {{"--moe-shared-expert-intermediate-size", "48"},
       [](M m) { return m.shared && m.shared->mlp.ffn_hidden == 48 && !m.shared->gate; }},
      {{"--moe-shared-expert-intermediate-size", "48", "--moe-shared-expert-gate"},
       [](M m) { return m.shared && m.shared->gate; }},
      {{"--ep", "2", "--moe-token-dispatcher-type", "alltoall"},
       [](M m) { return m.dispatch == TokenDispatch::all_to_all; }},
      {{"--moe-layer-recompute"}, [](M m) { return m.recompute; }},
  };
  return all;
}

TEST(ExpertFlags, SetTheirOptions) {
  const ExpertsConfig plain = experts_with({});
  EXPECT_EQ(plain.layers, std::vector<int64_t>(4, 1));
  EXPECT_EQ(plain.options.router.experts, 8);
  EXPECT_EQ(plain.options.experts.experts, 8);
  EXPECT_EQ(experts_with({"--moe-layer-freq", "2"}).layers, (std::vector<int64_t>{1, 0, 1, 0}));
  EXPECT_EQ(experts_with({"--moe-expert-capacity-factor", "-1"}).options.router.capacity_factor, 0.0);
  for (const FlagCase& c : flag_cases()) {
    EXPECT_FALSE(c.holds(plain.options)) << c.flags[0];
    EXPECT_TRUE(c.holds(experts_with(c.flags).options)) << c.flags[0];
  }
}

// Flags without effect say so in a notice, others change an option.
TEST(ExpertFlags, AreAllInEffectOrNot) {
  std::set<std::string> seen = {"--moe-layer-freq"};
  for (const FlagCase& c : flag_cases()) seen.insert(c.flags.begin(), c.flags.end());
  for (const Field& field : arguments_schema().fields()) {
    if (!field.name.starts_with("moe_")) continue;
    const std::string flag = flag_of(field.name);
    if (field.status == FieldStatus::active) {
      EXPECT_TRUE(seen.contains(flag)) << flag;
    } else {
      const Args flags = {"--num-experts", "8", "--moe-shared-expert-intermediate-size", "48", flag};
      EXPECT_TRUE(noted(validated(flags), flag)) << flag;
    }
  }
}

}  // namespace
}  // namespace teratron
