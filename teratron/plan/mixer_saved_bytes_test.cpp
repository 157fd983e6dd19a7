// The bytes that branches declare against those that a stack of their layers allocates.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"
#include "teratron/models/transformer/layer_stack_cost.h"
#include "teratron/plan/activation_memory.h"
#include "teratron/testing/generation/mixed_model.h"
#include "teratron/testing/memory_meter.h"

namespace teratron {
namespace {

constexpr int64_t mixer_length = 64, mixer_samples = 4;

struct MixerCase {
  std::string name;
  LayerBranches branches;
  double dropout = 0.0;
  RecomputeConfig recompute = {};
};

TransformerConfig mixer_config(const MixerCase& c) {
  return {.layers = 4,
          .hidden = 64,
          .ffn_hidden = 256,
          .heads = 4,
          .query_groups = 4,
          .kv_channels = 16,
          .hidden_dropout = c.dropout,
          .recompute = c.recompute,
          .branches = c.branches};
}

// A norm between the two branches, and none elsewhere.
std::vector<BranchOptions> two_sums(const TransformerConfig& config, int64_t /*layer*/) {
  BranchOptions one{.part = "left", .mixer = mixer_factory<DecayedSum>(config.hidden)};
  one.operators = decayed_sum_operators;
  BranchOptions two = one;
  one.output_norm = "middle_norm";
  one.dropout = own_sites;
  two.part = "linear_attn";
  two.norm = "right_norm";
  two.dropout = own_sites + 1;
  return {one, two};
}

// Both read what one norm gives.
LayerBranches mamba_beside_attention(double factor) {
  return [factor](const TransformerConfig& config, int64_t layer) {
    std::vector<BranchOptions> branches =
        mixed_branches(std::vector<LayerKind>(4, LayerKind::mamba))(config, layer);
    branches.push_back(self_attention_branch(config, layer));
    branches.back().norm.clear();
    branches.back().input = BranchInput::same_normed;
    branches.back().input_multiplier = factor;
    branches.back().output_multiplier = factor;
    return branches;
  };
}

std::vector<MixerCase> mixer_cases() {
  const auto all = [](LayerKind kind) { return mixed_branches(std::vector<LayerKind>(4, kind)); };
  using enum LayerKind;
  return {{"in place of attention", all(decayed_sum)},
          {"alone", all(lone_sum)},
          {"alone, with dropout", all(lone_sum), 0.1},
          {"alone, recomputed",
           all(lone_sum),
           0.1,
           {.granularity = RecomputeConfig::Granularity::layers, .layers = 2}},
          {"Mamba-2", all(mamba)},
          {"Mamba-2 with dropout", all(mamba), 0.1},
          {"Mamba-2 beside attention", mamba_beside_attention(1.0)},
          {"Mamba-2 beside attention, with factors", mamba_beside_attention(0.5)},
          {"four norms", all(four_norms)},
          {"four norms with dropout", all(four_norms), 0.1},
          {"two mixers", two_sums, 0.1},
          {"of several kinds", mixed_branches({lone_sum, attention, decayed_sum, four_norms})}};
}

LayerContext mixer_context(const MixerCase& c) {
  return {.rows = {at::arange(mixer_length, at::kLong), mixer_length},
          .sample_ids_B = at::arange(mixer_samples, at::kLong),
          .training = c.dropout > 0.0};
}

// On this rank, after a first step, which allocates gradients.
double allocated_by_mixers(const MixerCase& c, const LayerRange& layers, const TensorParallel& parallel) {
  const TransformerConfig config = mixer_config(c);
  ParameterSet parameters({.dtype = at::kFloat, .seed = 3});
  LayerStack stack(Scope(parameters) / "layers", config, layers, parallel,
                   transformer_layers(config, parallel, {}));
  const int64_t ranks = parallel.sequence_parallel ? parallel.group.size : 1;
  const at::Tensor x_SBH = at::randn({mixer_length / ranks, mixer_samples, config.hidden}).requires_grad_();
  const LayerContext given = mixer_context(c);  // its tensors are not counted
  const auto forward = [&] {
    LayerContext context = given;
    context.dropout_row_ids = std::make_shared<DropoutRowIds>();
    return apply_bias_grad(stack.forward(x_SBH, context, nullptr));
  };
  forward().sum().backward();
  const MemoryMeter meter;
  const int64_t before = meter.live();
  const at::Tensor y_SBH = forward();
  // The first norm saves x_SBH.
  return static_cast<double>(meter.live() - before + static_cast<int64_t>(x_SBH.nbytes()) -
                             static_cast<int64_t>(y_SBH.nbytes()));
}

void expect_declared_by_mixers(const MixerCase& c, const LayerRange& layers, const TensorParallel& parallel) {
  const TransformerConfig config = mixer_config(c);
  const RankBatch batch{.batch = {mixer_samples, mixer_length},
                        .dtype = Dtype::f32,
                        .gpu = false,
                        .tensor_parallel = parallel.group.size,
                        .sequence_parallel = parallel.sequence_parallel};
  const StackPart part{.layers = layers};
  const double declared = activation_memory(stack_operators("decoder", config, batch, part)).saved;
  EXPECT_NEAR(declared / allocated_by_mixers(c, layers, parallel), 1.0, 0.01)
      << c.name << ", " << layers.count << " layers on " << parallel.group.size << " ranks, "
      << parallel.sequence_parallel;
}

TEST(MixerOperators, SaveWhatTheirLayersSave) {
  at::set_num_threads(1);  // the tensors are tiny
  for (const MixerCase& c : mixer_cases()) {
    // All layers, and those of a second pipeline stage.
    for (const LayerRange& layers : {LayerRange{0, 4}, LayerRange{2, 2}}) {
      expect_declared_by_mixers(c, layers, {});
      for (const bool sequence_parallel : {false, true}) {
        run_ranks(MeshOptions{.tp = 2}, [&](const Mesh& mesh) {
          expect_declared_by_mixers(c, layers, {mesh.group(Axis::tp), sequence_parallel});
        });
      }
    }
  }
}

TEST(MixerOperators, HaveTheNamesOfTheirBranches) {
  const MixerCase c{"", two_sums};
  std::string names;
  for (const Operator& op : transformer_operators(mixer_config(c))("layers.3", {}, 3)) names += op.name + " ";
  EXPECT_EQ(names, "layers.3.left layers.3.middle_norm layers.3.right_norm layers.3.linear_attn ");
}

}  // namespace
}  // namespace teratron
