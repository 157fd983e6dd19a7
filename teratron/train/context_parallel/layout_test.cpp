// Context parallelism in layouts against one rank: loss and every gradient.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/models/gpt/gpt_family.h"
#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"

namespace teratron {
namespace {

using Comm = ContextParallelComm;

const std::vector<Layout> context_layouts = {
    {.cp = 2},
    {.cp = 4, .sharded = true},
    {.tp = 2, .cp = 2},
    {.tp = 2, .cp = 2, .sequence_parallel = true},
    {.cp = 2, .dp = 2, .microbatches = 2, .sharded = true, .overlap_param_gather = true},
    {.pp = 2, .cp = 2, .chunks = 2, .microbatches = 4},
    {.cp = 4, .average_in_collective = true, .late = true},
    {.tp = 2,
     .pp = 2,
     .cp = 2,
     .dp = 2,
     .chunks = 2,
     .microbatches = 2,
     .sequence_parallel = true,
     .sharded = true,
     .overlap_param_gather = true}};

GPTConfig with_comm(GPTConfig config, Comm comm) {
  config.context_parallel_comm.assign(static_cast<size_t>(config.layers), comm);
  return config;
}

class ContextLayouts : public ::testing::TestWithParam<Comm> {};

// Llama has two query groups: enough for a2a over two ranks.
bool fits(const GPTConfig& config, const Layout& layout, Comm comm) {
  return comm != Comm::a2a || config.query_groups % (layout.tp * layout.cp) == 0;
}

TEST_P(ContextLayouts, MatchOneRank) {
  for (TestVariant variant : family_variants()) {
    variant.config.layers = 4;
    const GPTConfig config = with_comm(variant.config, GetParam());
    for (const bool documents : {false, true}) {
      const TestData data{.documents = documents};
      const Gradients expected = gradients_of(config, {}, data, at::kDouble);
      const Gradients expected_f32 = gradients_of(config, {}, data, at::kFloat);
      for (const Layout& layout : context_layouts) {
        if (!fits(config, layout, GetParam())) continue;
        SCOPED_TRACE(variant.name + (documents ? " with documents, " : ", ") + to_string(layout));
        expect_same(gradients_of(config, layout, data, at::kDouble), expected, 1e-12);
        if (layout.cp == 2) expect_same(gradients_of(config, layout, data, at::kFloat), expected_f32, 1e-5);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Comms, ContextLayouts, ::testing::Values(Comm::p2p, Comm::all_gather, Comm::a2a));

TEST(ContextLayout, WindowsAndEveryKindOfCommunication) {
  GPTConfig config = gpt2_config();
  config.layers = 4;
  config.windows = {0, 3, 2, 0};
  config.context_parallel_comm = {Comm::p2p, Comm::a2a, Comm::all_gather, Comm::a2a};
  for (const bool documents : {false, true}) {
    const TestData data{.documents = documents};
    expect_same(gradients_of(config, {.tp = 2, .cp = 2}, data, at::kDouble),
                gradients_of(config, {}, data, at::kDouble), 1e-12);
  }
}

TEST(ContextLayout, AlibiQueryKeyNormsAndRecomputation) {
  for (const Comm comm : {Comm::p2p, Comm::all_gather, Comm::a2a}) {
    GPTConfig config = with_comm(gpt2_config(), comm);
    config.position = PositionEmbedding::alibi;
    config.qk_norm = true;
    config.query_key_layer_scaling = true;
    config.hidden_dropout = 0.1;
    for (const auto granularity :
         {RecomputeConfig::Granularity::attention_core, RecomputeConfig::Granularity::layers}) {
      config.recompute.granularity = granularity;
      expect_same(gradients_of(config, {.tp = 2, .cp = 2, .sequence_parallel = true}, {}, at::kDouble),
                  gradients_of(config, {}, {}, at::kDouble), 1e-12);
    }
  }
}

// A model whose batches count only the tokens of the last chunk of each sample: with two context-parallel
// ranks, one has no label at all.
TestModel last_tokens_model(const GPTConfig& config) {
  const ModelPlan plan = gpt_plan(config, {});
  return {plan, [vocabulary = plan.vocabulary](int64_t step, FlatRange samples) {
            MicroBatch batch = test_batch(TestData{}, vocabulary, step, samples);
            batch.tensors.set("loss_mask", batch["sequence_index"].ge(6).to(at::kFloat));
            return batch;
          }};
}

TEST(ContextLayout, ARankWhoseLabelsAreAllMasked) {
  const TestModel model = last_tokens_model(llama_config());
  const Gradients expected = gradients_of(model, {}, at::kDouble);
  EXPECT_EQ(expected.step.tokens, 2 * test_samples);
  for (const Layout& layout : {Layout{.cp = 2}, Layout{.cp = 4}, Layout{.cp = 2, .dp = 2, .microbatches = 2}})
    expect_same(gradients_of(model, layout, at::kDouble), expected, 1e-12);
}

TEST(ContextLayout, NoLabelsAtAll) {
  TestModel model = last_tokens_model(llama_config());
  const auto some = model.batch;
  model.batch = [some](int64_t step, FlatRange samples) {
    MicroBatch batch = some(step, samples);
    batch.tensors.set("loss_mask", at::zeros_like(batch["loss_mask"]));
    return batch;
  };
  const Gradients result = gradients_of(model, {.cp = 2}, at::kDouble);
  EXPECT_EQ(result.step.grad_norm, 0.0);
}

GPTConfig moe_config(DropPolicy policy) {
  GPTConfig config = llama_config();
  config.experts.layers = {1, 1};
  MoeOptions& moe = config.experts.options;
  moe.router.experts = moe.experts.experts = 8;
  moe.router.routing.topk = 2;
  moe.experts.ffn_hidden = 12;
  moe.router.aux_loss = 0.1;
  moe.router.seq_aux_loss = 0.2;
  moe.router.global_aux_loss = 0.05;
  moe.router.z_loss = 0.05;
  moe.router.jitter = 0.1;
  moe.router.capacity_factor = 0.75;
  moe.router.drop_policy = policy;
  config.init_std = 0.1;
  return config;
}

// The tokens of all ranks are routed together: those that are kept, losses and loads are those of one rank.
TEST(ContextLayout, Experts) {
  for (const DropPolicy policy : {DropPolicy::probs, DropPolicy::position}) {
    for (const Layout& layout : {Layout{.cp = 2}, Layout{.cp = 4, .ep = 2},
                                 Layout{.tp = 2, .cp = 2, .ep = 4, .sequence_parallel = true},
                                 Layout{.cp = 2, .dp = 2, .ep = 4, .sharded = true}}) {
      for (const bool documents : {false, true}) {
        SCOPED_TRACE(to_string(layout));
        GPTConfig config = moe_config(policy);
        // Its counts are running means, which differ between ranks and micro-batches.
        if (layout.dp > 1) config.experts.options.router.global_aux_loss = 0.0;
        const TestData data{.documents = documents};
        const Gradients expected = gradients_of(config, {.microbatches = layout.dp}, data, at::kDouble);
        const Gradients actual = gradients_of(config, layout, data, at::kDouble);
        expect_same(actual, expected, 1e-10);
        ASSERT_FALSE(expected.step.layer_sums.empty());
        for (size_t i = 0; i < expected.step.layer_sums.size(); ++i)
          EXPECT_NEAR(actual.step.layer_sums[i], expected.step.layer_sums[i],
                      1e-9 * std::abs(expected.step.layer_sums[i]) + 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace teratron
