// Multi-head latent attention in every layout against one rank: losses and every gradient.
#include <gtest/gtest.h>

#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"

namespace teratron {
namespace {

struct LatentCase {
  std::string name;
  std::function<void(GPTConfig&)> change = [](GPTConfig&) {};
  TestData data = {};
};

GPTConfig latent_test_config(const LatentCase& c) {
  GPTConfig config = llama_config();
  config.layers = 4;
  config.max_positions = 16;
  config.query_groups = config.heads;
  config.kv_channels = 10;
  config.latent = {.query_rank = 8, .kv_rank = 6, .rope_channels = 4, .v_channels = 7};
  config.latent->norm = NormOptions{.kind = NormKind::rms, .eps = 1e-6};
  config.rope.interleaved = true;
  config.init_std = 0.1;
  c.change(config);
  return config;
}

void add_experts(GPTConfig& config) {
  MoeOptions& moe = config.experts.options;
  moe.router.experts = moe.experts.experts = 8;
  moe.router.routing = {.topk = 3,
                        .score = RouterScore::sigmoid,
                        .scaling = 1.7,
                        .groups = 4,
                        .group_topk = 2,
                        .group_score_topk = 2};
  moe.router.expert_bias = true;
  moe.experts.ffn_hidden = 12;
  moe.shared = {.mlp = {.ffn_hidden = 24}};
  config.experts.layers = {0, 1, 1, 1};
}

// Options of ERNIE 4.5 and Llama 4.
void add_llama4(GPTConfig& config) {
  add_experts(config);
  MoeOptions& moe = config.experts.options;
  moe.router.routing = {.topk = 3, .score = RouterScore::softmax, .pre_softmax = true, .least_sum = 0.5};
  moe.inputs_weighted = true;
  config.latent = std::nullopt;
  config.chunk = 5;
  config.no_rope = {0, 1, 0, 1};
  config.temperature = {.scale = 0.5, .step = 3};
  config.qk_l2_norm = true;
}

const std::vector<LatentCase> latent_cases = {
    {"queries without latents",
     [](GPTConfig& c) {
       c.latent->query_rank = 0;
       c.linear_bias = true;
     }},
    {"experts, YaRN",
     [](GPTConfig& c) {
       add_experts(c);
       c.attention_bias = true;
       c.rope.yarn = {.factor = 4.0, .positions = 4.0, .mscale = 0.7, .mscale_all_dim = 1.0};
       c.softmax_scale = 0.4;
     }},
    {"documents, a2a, no norms",
     [](GPTConfig& c) {
       c.latent->norm = std::nullopt;
       c.context_parallel_comm.assign(4, ContextParallelComm::a2a);
       c.hidden_dropout = 0.1;
     },
     {.sequence = 16, .documents = true}},
    {"documents, ring", [](GPTConfig&) {}, {.sequence = 16, .documents = true}},
    {"multi-token prediction",
     [](GPTConfig& c) {
       add_experts(c);
       c.mtp_layers = 2;
       c.mtp_loss_factor = 0.7;
       add_mtp_layers(c);
     },
     {.sequence = 16}},
    {"multi-token prediction, documents, tied embeddings, layers without rotation",
     [](GPTConfig& c) {
       c.tied_embeddings = true;
       c.latent = std::nullopt;
       c.no_rope = {0, 1, 0, 1};
       c.mtp_layers = 1;
       add_mtp_layers(c);
     },
     {.sequence = 16, .documents = true}},
    {"biases of softmax scores, weighted inputs of experts, chunks, temperatures, documents, ring",
     [](GPTConfig& c) { add_llama4(c); },
     {.sequence = 16, .documents = true}},
    {"the same with gathered keys and whole samples", [](GPTConfig& c) { add_llama4(c); }, {.sequence = 16}},
    {"the same with a2a, padded experts",
     [](GPTConfig& c) {
       add_llama4(c);
       c.context_parallel_comm.assign(4, ContextParallelComm::a2a);
       c.experts.options.router.capacity_factor = 1.0;
       c.experts.options.router.pad_to_capacity = true;
     },
     {.sequence = 16, .documents = true}},
    {"dropout of scores", [](GPTConfig& c) { c.attention_dropout = 0.2; }, {.sequence = 16}}};

const std::vector<Layout> latent_layouts = {
    {.tp = 2, .etp = 2},
    {.tp = 4, .sequence_parallel = true},
    {.pp = 2, .microbatches = 4},
    {.pp = 2, .chunks = 2, .microbatches = 4},
    {.dp = 2, .ep = 2},
    {.cp = 2},
    {.tp = 2, .pp = 2, .cp = 2, .microbatches = 2, .sequence_parallel = true, .sharded = true},
    {.tp = 2, .pp = 2, .dp = 2, .ep = 2, .microbatches = 2, .sequence_parallel = true, .sharded = true}};

class LatentLayouts : public ::testing::TestWithParam<size_t> {};

TEST_P(LatentLayouts, MatchOneRank) {
  const LatentCase& c = latent_cases[GetParam()];
  const GPTConfig config = latent_test_config(c);
  std::map<int64_t, Gradients> references;  // by micro-batches
  for (const Layout& layout : latent_layouts) {
    if (layout.ep > 1 && config.experts.count() == 0 && layout.tp == 1) continue;
    SCOPED_TRACE(fmt::format("{}, {}", c.name, to_string(layout)));
    const Layout serial{.microbatches = layout.dp * layout.microbatches};
    const auto [expected, is_new] = references.try_emplace(serial.microbatches);
    if (is_new) expected->second = gradients_of(config, serial, c.data, at::kDouble);
    expect_same(gradients_of(config, layout, c.data, at::kDouble), expected->second, 1e-10);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LatentLayouts, ::testing::Range(size_t{0}, latent_cases.size()));

// Recomputation of layers, of attention and of experts, and offloading, with latents and further tokens.
TEST(LatentLayouts, WhatSavesMemoryChangesNoBit) {
  using Granularity = RecomputeConfig::Granularity;
  const auto usual = [](GPTConfig& config) {
    add_experts(config);
    config.hidden_dropout = 0.1;
    config.mtp_layers = 2;
    add_mtp_layers(config);
  };
  const std::vector<std::pair<const char*, std::function<void(GPTConfig&)>>> changes = {
      {"layers", [](GPTConfig& c) { c.recompute = {.granularity = Granularity::layers, .layers = 2}; }},
      {"block",
       [](GPTConfig& c) {
         c.recompute = {.granularity = Granularity::layers, .method = RecomputeConfig::Method::block};
       }},
      {"attention", [](GPTConfig& c) { c.recompute = {.granularity = Granularity::attention_core}; }},
      {"experts", [](GPTConfig& c) { c.experts.options.recompute = true; }},
      {"offload", [](GPTConfig& c) { c.offload = {.layers = 2, .min_bytes = 0}; }}};
  for (const Layout& layout : {Layout{}, Layout{.tp = 2, .sequence_parallel = true}}) {
    const TestData data{.sequence = 16};
    const Gradients plain = gradients_of(latent_test_config({"", usual}), layout, data, at::kFloat);
    for (const auto& [name, change] : changes) {
      GPTConfig config = latent_test_config({"", usual});
      change(config);
      const Gradients again = gradients_of(config, layout, data, at::kFloat);
      EXPECT_EQ(again.step.loss, plain.step.loss) << name;
      for (const auto& [tensor, value] : plain.tensors)
        EXPECT_TRUE(at::equal(again.tensors.at(tensor), value)) << name << ", " << tensor;
    }
  }
}

TEST(LatentLayouts, RecomputationChangesNoBit) {
  LatentCase c{"plain", [](GPTConfig& config) { config.hidden_dropout = 0.1; }};
  const Gradients plain = gradients_of(latent_test_config(c), {}, c.data, at::kFloat);
  c.change = [](GPTConfig& config) {
    config.hidden_dropout = 0.1;
    config.recompute = {.granularity = RecomputeConfig::Granularity::layers, .layers = 2};
  };
  const Gradients again = gradients_of(latent_test_config(c), {}, c.data, at::kFloat);
  EXPECT_EQ(again.step.loss, plain.step.loss);
  ASSERT_EQ(again.tensors.size(), plain.tensors.size());
  for (const auto& [name, tensor] : plain.tensors)
    EXPECT_TRUE(at::equal(again.tensors.at(name), tensor)) << name;
}

}  // namespace
}  // namespace teratron
