// Layers with experts in every layout against one rank with the same micro-batches: losses, loads, every
// gradient, and weights and expert biases after some steps.
#include <mutex>
#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/models/gpt/gpt_family.h"
#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"
#include "teratron/train/guards/nonfinite.h"

namespace teratron {
namespace {

struct MoeCase {
  const char* name;
  std::function<void(GPTConfig&)> change = [](GPTConfig&) {};
};

GPTConfig moe_config() {
  GPTConfig config = llama_config();
  config.layers = 4;
  config.experts.layers = {1, 0, 1, 1};
  MoeOptions& moe = config.experts.options;
  moe.router.experts = moe.experts.experts = 8;
  moe.experts.ffn_hidden = 12;
  moe.router.aux_loss = 0.1;
  config.init_std = 0.1;  // loads that differ
  return config;
}

RouterOptions& router_of(GPTConfig& config) {
  return config.experts.options.router;
}

void use_biases(GPTConfig& config) {
  config.linear_bias = true;
  config.activation = Activation::gelu;
  router_of(config).bias = config.experts.options.experts.bias = true;
}

const std::vector<MoeCase> moe_cases = {
    {"mixtral"},
    {"every_loss",
     [](GPTConfig& c) {
       router_of(c).routing = {.topk = 3, .pre_softmax = true, .scaling = 1.5};
       router_of(c).seq_aux_loss = 0.2;
       router_of(c).z_loss = 0.05;
     }},
    {"deepseek",
     [](GPTConfig& c) {
       router_of(c).routing = {.topk = 4, .score = RouterScore::sigmoid, .groups = 4, .group_topk = 2};
       router_of(c).expert_bias = true;
       router_of(c).expert_bias_rate = 0.05;
       c.experts.options.shared = {.mlp = {.ffn_hidden = 8}};
       c.experts.options.recompute = true;
     }},
    {"latent",
     [](GPTConfig& c) {
       router_of(c).routing = {
           .topk = 2, .score = RouterScore::sigmoid, .groups = 4, .group_topk = 2, .group_score_topk = 2};
       c.experts.options.latent = 6;
       c.experts.options.shared = {.mlp = {.ffn_hidden = 8}};
     }},
    {"qwen2_drops",
     [](GPTConfig& c) {
       router_of(c).capacity_factor = 0.75;
       router_of(c).jitter = 0.1;
       c.experts.options.shared = {.mlp = {.ffn_hidden = 8}, .gate = true};
       c.recompute = {.granularity = RecomputeConfig::Granularity::layers, .layers = 1};
     }},
    {"first_tokens",
     [](GPTConfig& c) {
       router_of(c).capacity_factor = 0.5;
       router_of(c).drop_policy = DropPolicy::position;
     }},
    {"padded",
     [](GPTConfig& c) {
       router_of(c).routing.score = RouterScore::sqrtsoftplus;
       router_of(c).capacity_factor = 1.25;
       router_of(c).pad_to_capacity = true;
     }},
    {"padded_first_tokens",
     [](GPTConfig& c) {
       router_of(c).capacity_factor = 0.75;
       router_of(c).drop_policy = DropPolicy::position;
       router_of(c).pad_to_capacity = true;
       c.experts.options.shared = {.mlp = {.ffn_hidden = 8}, .gate = true};
     }},
    {"random_experts", [](GPTConfig& c) { router_of(c).force_balance = true; }},
    {"sinkhorn_of_two",
     [](GPTConfig& c) {
       router_of(c).sinkhorn = true;
       router_of(c).aux_loss = 0.0;
       router_of(c).z_loss = 0.05;
     }},
    {"sinkhorn",
     [](GPTConfig& c) {
       router_of(c).sinkhorn = true;
       router_of(c).aux_loss = 0.0;
       router_of(c).routing.topk = 1;
     }},
};

// Samples begin with different tokens: of equal ones, rounding would choose which an expert drops.
Gradients expert_gradients(const GPTConfig& config, const Layout& layout) {
  const auto samples_of = [vocabulary = config.vocabulary](int64_t step, FlatRange samples) {
    MicroBatch batch = test_batch({}, vocabulary, step, samples);
    at::Tensor(batch["tokens"]).select(0, 0).copy_(at::arange(samples.begin, samples.end));
    return batch;
  };
  return gradients_of({gpt_plan(config, {}), samples_of}, layout, at::kDouble);
}

Layout one_rank(const Layout& layout) {
  return {.microbatches = layout.dp * layout.microbatches};
}

GPTConfig config_of(const MoeCase& c, TokenDispatch dispatch) {
  GPTConfig config = moe_config();
  c.change(config);
  config.experts.options.dispatch = dispatch;
  return config;
}

void expect_same_sums(const StepResult& actual, const StepResult& expected) {
  ASSERT_EQ(actual.layer_sums.size(), expected.layer_sums.size());
  ASSERT_FALSE(expected.layer_sums.empty());
  for (size_t i = 0; i < expected.layer_sums.size(); ++i)
    EXPECT_NEAR(actual.layer_sums[i], expected.layer_sums[i],
                1e-9 * std::abs(expected.layer_sums[i]) + 1e-12);
}

const std::vector<Layout> moe_layouts = {
    {.dp = 2},
    {.pp = 2, .microbatches = 4},
    {.pp = 2, .chunks = 2, .microbatches = 4},
    {.tp = 2, .etp = 2},
    {.tp = 2, .sequence_parallel = true},
    {.tp = 2, .etp = 2, .sequence_parallel = true},
    {.dp = 2, .ep = 2},
    {.dp = 2, .etp = 2},
    {.tp = 2, .ep = 2, .sequence_parallel = true},
    {.tp = 2, .dp = 2, .ep = 2, .etp = 2},
    {.tp = 2, .dp = 2, .ep = 2, .etp = 2, .sequence_parallel = true, .sharded = true},
    {.tp = 2,
     .pp = 2,
     .dp = 2,
     .ep = 4,
     .microbatches = 2,
     .sequence_parallel = true,
     .sharded = true,
     .overlap_param_gather = true},
    {.dp = 4, .ep = 2, .average_in_collective = true}};

class MoeLayout : public ::testing::TestWithParam<size_t> {};

TEST_P(MoeLayout, GradientsMatchOneRank) {
  const MoeCase& c = moe_cases[GetParam()];
  std::map<int64_t, Gradients> references;  // by micro-batches
  for (size_t i = 0; i < moe_layouts.size(); ++i) {
    const Layout& layout = moe_layouts[i];
    const bool exchanges = layout.ep > 1 && (i + GetParam()) % 2 == 0;
    SCOPED_TRACE(fmt::format("{}, {}{}", c.name, to_string(layout), exchanges ? ", all-to-all" : ""));
    const GPTConfig config = config_of(c, exchanges ? TokenDispatch::all_to_all : TokenDispatch::all_gather);
    const Layout serial = one_rank(layout);
    const auto [expected, is_new] = references.try_emplace(serial.microbatches);
    if (is_new) expected->second = expert_gradients(config, serial);
    const Gradients actual = expert_gradients(config, layout);
    expect_same(actual, expected->second, 1e-10);
    expect_same_sums(actual.step, expected->second.step);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, MoeLayout, ::testing::Range(size_t{0}, moe_cases.size()),
                         [](const auto& info) { return moe_cases[info.param].name; });

// It counts the choices of the micro-batches so far, which are those of one rank if there is one replica.
TEST(MoeLayouts, LossOfAllMicroBatchesMatchesOneRank) {
  GPTConfig config = moe_config();
  router_of(config).global_aux_loss = 0.3;
  for (const Layout& layout :
       {Layout{.tp = 2, .microbatches = 4, .sequence_parallel = true},
        Layout{.tp = 2, .pp = 2, .ep = 2, .microbatches = 4, .sequence_parallel = true},
        Layout{.tp = 2, .cp = 2, .ep = 4, .microbatches = 2, .sequence_parallel = true, .sharded = true}}) {
    SCOPED_TRACE(to_string(layout));
    const Gradients actual = expert_gradients(config, layout);
    const Gradients expected = expert_gradients(config, one_rank(layout));
    expect_same(actual, expected, 1e-10);
    expect_same_sums(actual.step, expected.step);
  }
}

void expect_equal(const Gradients& actual, const Gradients& expected) {
  EXPECT_EQ(actual.step.loss, expected.step.loss);
  EXPECT_EQ(actual.step.grad_norm, expected.step.grad_norm);
  ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors)
    EXPECT_TRUE(at::equal(actual.tensors.at(name), tensor)) << name;
}

TEST(MoeLayouts, RecomputationChangesNoBit) {
  const std::vector<Layout> layouts = {
      {.microbatches = 2},
      {.dp = 2, .ep = 2},
      {.tp = 2, .ep = 2, .sequence_parallel = true},
      {.tp = 2, .dp = 2, .ep = 2, .etp = 2, .sequence_parallel = true, .sharded = true},
      {.tp = 2, .pp = 2, .cp = 2, .ep = 4, .microbatches = 2, .sequence_parallel = true}};
  for (size_t number = 0; number < 2 * moe_cases.size(); ++number) {
    const MoeCase& c = moe_cases[number / 2];
    const Layout& layout = layouts[(number + number / 2) % layouts.size()];
    SCOPED_TRACE(fmt::format("{}, {}", c.name, to_string(layout)));
    GPTConfig config = config_of(c, number % 2 == 0 ? TokenDispatch::all_gather : TokenDispatch::all_to_all);
    config.hidden_dropout = 0.1;
    config.experts.options.recompute = false;
    config.recompute = {};
    const Gradients plain = gradients_of(config, layout, {}, at::kFloat);
    config.experts.options.recompute = true;
    expect_equal(gradients_of(config, layout, {}, at::kFloat), plain);
    config.experts.options.recompute = false;
    config.recompute = {.granularity = RecomputeConfig::Granularity::layers, .layers = 1};
    expect_equal(gradients_of(config, layout, {}, at::kFloat), plain);
  }
}

TEST(MoeLayouts, PaddingChangesNoGradient) {
  GPTConfig config = moe_config();
  use_biases(config);
  router_of(config).capacity_factor = 0.9;
  const Gradients plain = gradients_of(config, {}, {}, at::kDouble);
  router_of(config).pad_to_capacity = true;
  expect_same(gradients_of(config, {}, {}, at::kDouble), plain, 1e-12);
}

TEST(MoeLayouts, MatchOneRankInSinglePrecision) {
  const Layout layout{.tp = 2, .dp = 2, .ep = 4, .sequence_parallel = true};
  const GPTConfig config = config_of(moe_cases[0], TokenDispatch::all_to_all);
  expect_same(gradients_of(config, layout, {}, at::kFloat),
              gradients_of(config, one_rank(layout), {}, at::kFloat), 2e-5);
}

TEST(MoeLayouts, BiasesOfExperts) {
  GPTConfig config = moe_config();
  use_biases(config);
  for (const Layout& layout :
       {Layout{.tp = 2, .dp = 2, .ep = 2, .sequence_parallel = true},
        Layout{.tp = 2, .dp = 2, .ep = 2, .etp = 2, .sequence_parallel = true}, Layout{.tp = 2, .etp = 2}}) {
    SCOPED_TRACE(to_string(layout));
    expect_same(expert_gradients(config, layout), expert_gradients(config, one_rank(layout)), 1e-10);
  }
}

// Weights, and biases of the choice, after steps in which both change.
std::map<std::string, at::Tensor> trained_moe(const GPTConfig& config, const Layout& layout) {
  GlobalTensors global;
  run_layout(layout, [&](const Mesh& mesh) {
    TrainEngine engine(engine_options(config, layout, at::kDouble), mesh);
    for (int64_t step = 0; step < 3; ++step) train_step(engine, layout, {}, step, {.lr = 1e-2}).wait();
    for (const StateTensor& weight : weights(engine)) global.add(weight);
    for (const Buffer& buffer : engine.parameters().buffers())
      global.add({buffer.name, buffer.shard, {0, buffer.tensor.numel()}, buffer.tensor.reshape({-1})});
  });
  return global.tensors();
}

TEST(MoeLayouts, TrainTheSameWeights) {
  const Layout layout{
      .tp = 2, .pp = 2, .dp = 2, .ep = 2, .microbatches = 2, .sequence_parallel = true, .sharded = true};
  const GPTConfig config = config_of(moe_cases[2], TokenDispatch::all_to_all);
  const auto actual = trained_moe(config, layout), expected = trained_moe(config, one_rank(layout));
  ASSERT_EQ(actual.size(), expected.size());
  ASSERT_TRUE(expected.contains("decoder.layers.0.mlp.router.expert_bias"));
  ASSERT_TRUE(expected.contains("decoder.layers.3.mlp.experts.7.linear_fc2.weight"));
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(at::allclose(actual.at(name), tensor, 1e-7, 1e-9)) << name;
    if (name.ends_with("expert_bias")) {
      EXPECT_GT(tensor.abs().max().item<double>(), 0.01) << name;
    }
  }
}

// What training says of a parameter that has a NaN, on all ranks.
std::set<std::string> nonfinite_message(const Layout& layout, const std::string& parameter, int64_t row) {
  std::set<std::string> messages;
  std::mutex mutex;
  run_layout(layout, [&](const Mesh& mesh) {
    EngineOptions options = engine_options(moe_config(), layout, at::kFloat);
    options.save_batches = true;
    TrainEngine engine(options, mesh);
    if (Parameter* const found = engine.parameters().find(parameter)) found->tensor.detach()[row].fill_(NAN);
    const PendingStep step = train_step(engine, layout, {}, 0, {.lr = 1e-2});
    const std::string message = diagnose_nonfinite(engine, step, 1, {});
    const std::lock_guard lock(mutex);
    messages.insert(message);
  });
  return messages;
}

TEST(MoeNonFinite, IsNamedWithLayerAndExpert) {
  for (const Layout& layout :
       {Layout{}, Layout{.dp = 2, .ep = 2}, Layout{.tp = 2, .etp = 2, .sequence_parallel = true},
        Layout{.tp = 2, .pp = 2, .dp = 2, .ep = 4, .microbatches = 2, .sequence_parallel = true}}) {
    SCOPED_TRACE(to_string(layout));
    const std::string router = "the output of decoder.layers.2.mlp.router, expert 5 is the first";
    const std::string expert = "the output of decoder.layers.3.mlp.experts.6 is the first";
    for (const std::string& message : nonfinite_message(layout, "decoder.layers.2.mlp.router.weight", 5))
      EXPECT_NE(message.find(router), std::string::npos) << message;
    for (const std::string& message :
         nonfinite_message(layout, "decoder.layers.3.mlp.experts.6.linear_fc2.weight", 0))
      EXPECT_NE(message.find(expert), std::string::npos) << message;
  }
}

Layout random_expert_layout(GPTConfig& config, std::mt19937& random) {
  Layout layout;
  do {
    layout = random_layout(config, random, 16);
    if (random() % 2 == 0) add_context_parallel(config, layout, 16, random);
    layout.ep = int64_t{1} << random() % 4;
    layout.etp = layout.tp > 1 && !layout.sequence_parallel ? layout.tp : int64_t{1} << random() % 2;
  } while (layout.tp * layout.cp * layout.dp % (layout.ep * layout.etp) != 0);
  return layout;
}

TEST(MoeLayouts, RandomOnesMatchOneRank) {
  RandomCases random_cases({.share = 0.1, .minimum = 4});
  while (std::optional<std::mt19937> random = random_cases.next()) {
    GPTConfig config =
        config_of(moe_cases[(*random)() % moe_cases.size()],
                  (*random)() % 2 == 0 ? TokenDispatch::all_gather : TokenDispatch::all_to_all);
    if ((*random)() % 4 == 0) use_biases(config);
    config.hidden_dropout = (*random)() % 4 == 0 ? 0.1 : 0.0;
    router_of(config).pad_to_capacity = router_of(config).capacity_factor > 0.0 && (*random)() % 2 == 0;
    config.experts.options.recompute = (*random)() % 4 == 0;
    const Layout layout = random_expert_layout(config, *random);
    SCOPED_TRACE(fmt::format("seed {}: {}", random_cases.seed(), to_string(layout)));
    const Gradients actual = expert_gradients(config, layout);
    const Gradients expected = expert_gradients(config, one_rank(layout));
    expect_same(actual, expected, 1e-9);
    expect_same_sums(actual.step, expected.step);
  }
}

}  // namespace
}  // namespace teratron
