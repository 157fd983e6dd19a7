// Models of Mamba-2 layers and hybrids in every layout against one rank: losses and every gradient.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "teratron/models/mamba/mamba_config.h"
#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"

namespace teratron {
namespace {

struct HybridCase {
  std::string layers;
  std::function<void(GPTConfig&)> change = [](GPTConfig&) {};
  TestData data = {};
  bool passes_states = false;
};

GPTConfig hybrid_test_config(const HybridCase& c) {
  GPTConfig config = llama_config();
  config.position = PositionEmbedding::none;
  config.activation = Activation::squared_relu;
  MoeOptions& moe = config.experts.options;
  moe.router.experts = moe.experts.experts = 4;
  moe.router.routing = {.topk = 2, .score = RouterScore::sigmoid};
  moe.experts.ffn_hidden = 12;
  config.init_std = 0.1;
  c.change(config);
  make_hybrid(config, c.layers,
              {.mamba = {.core = {.heads = 4, .head_dim = 8, .groups = 2, .state = 6, .chunk = 4},
                         .multipliers = c.layers.find('H') == std::string::npos
                                            ? std::vector<double>()
                                            : std::vector<double>{0.7, 1.2, 0.9, 1.1, 0.8},
                         .passes_states = c.passes_states},
               .delta = {.core = {.key_heads = 4, .value_heads = 8, .key_dim = 6, .value_dim = 5, .chunk = 4},
                         .passes_states = c.passes_states},
               .of_mamba = {1.3, 0.6},
               .of_attention = {0.7, 1.4},
               .of_mlp = {.output = 1.2}});
  return config;
}

const std::vector<HybridCase> hybrid_cases = {
    {"MMMM"},
    {"M-M*"},
    {"M*ME"},
    {"M-*G"},
    {"H-H-",
     [](GPTConfig& c) {
       c.activation = Activation::swiglu;
       c.gate_multiplier = 0.6;
       c.residual_multiplier = 0.8;
       c.embedding_multiplier = 1.7;
       c.logits_multiplier = 0.5;
     }},
    {"MG-*", [](GPTConfig&) {}, {.sequence = 16}, true},
    {"GMHG", [](GPTConfig& c) { c.hidden_dropout = 0.1; }, {.sequence = 16, .documents = true}, true},
    {"M-M*", [](GPTConfig& c) { c.hidden_dropout = 0.1; }, {.sequence = 16, .documents = true}},
    {"GG*-", [](GPTConfig& c) { c.attention_output_gate = true; }, {.sequence = 16, .documents = true}}};

const std::vector<Layout> hybrid_layouts = {
    {.tp = 2, .etp = 2},
    {.tp = 2, .sequence_parallel = true},
    {.pp = 2, .microbatches = 4},
    {.pp = 2, .chunks = 2, .microbatches = 4},
    {.pp = 2, .stages = "Ettt|tL", .microbatches = 2},
    {.dp = 2, .sharded = true},
    {.dp = 2, .ep = 2},
    {.cp = 2},
    {.cp = 4, .microbatches = 2},
    {.tp = 2, .pp = 2, .cp = 2, .microbatches = 2, .sequence_parallel = true, .sharded = true},
    {.tp = 2, .pp = 2, .dp = 2, .ep = 2, .microbatches = 2, .sequence_parallel = true, .sharded = true}};

class HybridLayouts : public ::testing::TestWithParam<size_t> {};

TEST_P(HybridLayouts, MatchOneRank) {
  const HybridCase& c = hybrid_cases[GetParam()];
  const GPTConfig config = hybrid_test_config(c);
  std::map<int64_t, Gradients> references;  // by micro-batches
  for (const Layout& layout : hybrid_layouts) {
    if (layout.ep > 1 && config.experts.count() == 0 && layout.dp * layout.tp == 2) continue;
    SCOPED_TRACE(fmt::format("{}, {}", c.layers, to_string(layout)));
    const Layout serial{.microbatches = layout.dp * layout.microbatches};
    const auto [expected, is_new] = references.try_emplace(serial.microbatches);
    if (is_new) expected->second = gradients_of(config, serial, c.data, at::kDouble);
    expect_same(gradients_of(config, layout, c.data, at::kDouble), expected->second, 1e-10);
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, HybridLayouts, ::testing::Range(size_t{0}, hybrid_cases.size()));

void expect_equal(const Gradients& actual, const Gradients& expected) {
  EXPECT_EQ(actual.step.loss, expected.step.loss);
  ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors)
    EXPECT_TRUE(at::equal(actual.tensors.at(name), tensor)) << name;
}

TEST(HybridLayouts, RecomputationChangesNoBit) {
  HybridCase c = hybrid_cases[7];
  const Gradients plain = gradients_of(hybrid_test_config(c), {}, c.data, at::kFloat);
  c.change = [](GPTConfig& config) {
    config.hidden_dropout = 0.1;
    config.recompute = {.granularity = RecomputeConfig::Granularity::layers, .layers = 2};
  };
  expect_equal(gradients_of(hybrid_test_config(c), {}, c.data, at::kFloat), plain);
}

// Logits of rows with two documents, the second from token 5 on.
at::Tensor packed_logits(const std::string& layers, const at::Tensor& tokens_SB) {
  const GPTConfig config = hybrid_test_config({layers});
  ParameterSet parameters({.dtype = at::kDouble, .seed = 3});
  GPT model(parameters, config, {.layers = std::ssize(layers)}, {});
  const int64_t S = tokens_SB.size(0), B = tokens_SB.size(1);
  const MicroBatch batch{.tensors = {{"tokens", tokens_SB},
                                     {"sequence_index", at::arange(S, at::kLong).unsqueeze(1).expand({S, B})},
                                     {"cu_seqlens", two_documents(B, S, 5)}},
                         .training = false};
  const c10::AutoGradMode without_gradients(false);
  return model.logits(model.forward({}, batch, nullptr));
}

double difference(const at::Tensor& one, const at::Tensor& other) {
  return (one - other).abs().max().item<double>();
}

TEST(Hybrids, ADocumentNeverSeesTheOneBeforeIt) {
  for (const char* const layers : {"MM", "GG", "M*-G", "HG"}) {
    at::manual_seed(1);
    const at::Tensor tokens_SB = at::randint(0, 37, {8, 2}, at::kLong);
    at::Tensor other_SB = tokens_SB.clone();
    other_SB.narrow(0, 0, 5).add_(1).remainder_(37);
    const at::Tensor one = packed_logits(layers, tokens_SB), other = packed_logits(layers, other_SB);
    // Decays are summed from the beginning of a chunk, so that the last bits may differ.
    EXPECT_LE(difference(one.narrow(0, 5, 3), other.narrow(0, 5, 3)), 1e-12) << layers;
    EXPECT_GE(difference(one.narrow(0, 4, 1), other.narrow(0, 4, 1)), 1e-4) << layers;
    // Within a document what came before does matter.
    other_SB = tokens_SB.clone();
    other_SB.narrow(0, 5, 1).add_(1).remainder_(37);
    const at::Tensor within = packed_logits(layers, other_SB);
    EXPECT_GE(difference(one.narrow(0, 7, 1), within.narrow(0, 7, 1)), 1e-6) << layers;
    EXPECT_LE(difference(one.narrow(0, 0, 5), within.narrow(0, 0, 5)), 1e-12) << layers;
  }
}

TEST(Mamba, ParametersAreNamedAndInitialisedAsInMegatron) {
  const GPTConfig config = hybrid_test_config({"M-M*"});
  ParameterSet parameters({.dtype = at::kBFloat16, .seed = 3});
  const GPT model(parameters, config, {.layers = 4}, {});
  const auto tensor = [&](const char* name) {
    Parameter* const found = parameters.find(name);
    EXPECT_NE(found, nullptr) << name;
    return found->tensor.detach().to(at::kDouble);
  };
  for (const char* const name :
       {"decoder.layers.0.norm.weight", "decoder.layers.0.mixer.in_proj.weight",
        "decoder.layers.0.mixer.norm.weight", "decoder.layers.0.mixer.out_proj.weight",
        "decoder.layers.1.pre_mlp_layernorm.weight", "decoder.layers.3.input_layernorm.weight",
        "decoder.final_norm.weight"})
    EXPECT_NE(parameters.find(name), nullptr) << name;
  for (const char* const name : {"dt_bias", "A_log", "D"}) {
    const Parameter* const found = parameters.find(fmt::format("decoder.layers.0.mixer.{}", name));
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->tensor.scalar_type(), at::kFloat);
    EXPECT_EQ(found->options.param_group, ParamGroup::no_weight_decay);
  }
  EXPECT_EQ(parameters.find("decoder.layers.0.mixer.conv1d.weight")->options.param_group,
            ParamGroup::standard);
  const at::Tensor decay = tensor("decoder.layers.0.mixer.A_log").exp();
  EXPECT_GE(decay.min().item<double>(), 1.0 - 1e-6);
  EXPECT_LE(decay.max().item<double>(), 16.0 + 1e-5);
  const at::Tensor step = at::softplus(tensor("decoder.layers.0.mixer.dt_bias"));
  EXPECT_GE(step.min().item<double>(), 1e-3 * (1 - 1e-4));
  EXPECT_LE(step.max().item<double>(), 0.1 * (1 + 1e-4));
  EXPECT_LE(tensor("decoder.layers.0.mixer.conv1d.weight").abs().max().item<double>(), 0.5);
  EXPECT_TRUE(at::equal(tensor("decoder.layers.2.mixer.D"), at::ones({4}, at::kDouble)));
  // std / sqrt(layers)
  EXPECT_NEAR(tensor("decoder.layers.0.mixer.out_proj.weight").std().item<double>(), 0.1 / 2.0, 0.01);
}

}  // namespace
}  // namespace teratron
