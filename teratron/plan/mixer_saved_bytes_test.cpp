// The bytes that a program's own mixer declares against those that a stack of its layers allocates.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "teratron/models/transformer/layer_stack.h"
#include "teratron/models/transformer/layer_stack_cost.h"
#include "teratron/models/transformer/transformer_layer.h"
#include "teratron/plan/activation_memory.h"
#include "teratron/testing/generation/mixers.h"
#include "teratron/testing/memory_meter.h"

namespace teratron {
namespace {

constexpr int64_t mixer_length = 64, mixer_samples = 4;

// After a first step, which allocates gradients.
double allocated_by_mixers(const TransformerConfig& config) {
  ParameterSet parameters({.dtype = at::kFloat, .seed = 3});
  const auto make_layer = [&](const Scope& scope, int64_t layer) {
    const MixerFactory sum = [&](const Scope& own) {
      return std::make_unique<DecayedSum>(own, config.hidden, TensorParallel{});
    };
    return std::make_unique<TransformerLayer>(scope, config, layer, TensorParallel{},
                                              LayerParts{.attention = sum});
  };
  LayerStack stack(Scope(parameters) / "layers", config, {0, config.layers}, {}, make_layer);
  const at::Tensor x_SBH = at::randn({mixer_length, mixer_samples, config.hidden}).requires_grad_();
  const auto forward = [&] { return apply_bias_grad(stack.forward(x_SBH, {}, nullptr)); };
  forward().sum().backward();
  const MemoryMeter meter;
  const int64_t before = meter.live();
  const at::Tensor y_SBH = forward();
  // The first norm saves x_SBH.
  return static_cast<double>(meter.live() - before + static_cast<int64_t>(x_SBH.nbytes()) -
                             static_cast<int64_t>(y_SBH.nbytes()));
}

TEST(MixerOperators, SaveWhatARecurrenceSaves) {
  at::set_num_threads(1);  // the tensors are tiny
  const TransformerConfig config{
      .layers = 2, .hidden = 64, .ffn_hidden = 256, .heads = 4, .query_groups = 4, .kv_channels = 16};
  const LayerOperators operators = transformer_operators(config, {.attention = decayed_sum_operators});
  const RankBatch batch{.batch = {mixer_samples, mixer_length}, .dtype = Dtype::f32, .gpu = false};
  const double ours =
      activation_memory(
          stack_operators("decoder", config, batch, {.layers = {0, config.layers}, .operators = operators}))
          .saved;
  EXPECT_NEAR(ours / allocated_by_mixers(config), 1.0, 0.01);
}

}  // namespace
}  // namespace teratron
