// FLOPs of a GPT's operators against Megatron-LM's formulas and numbers, and a published formula.
#include <gtest/gtest.h>

#include "teratron/models/gpt/gpt_family.h"
#include "teratron/plan/flops.h"
#include "teratron/testing/models.h"

namespace teratron {
namespace {

GPTConfig gpt3() {
  GPTConfig config = gpt2_config({.hidden = 12288, .ffn_hidden = 4 * 12288, .heads = 96, .positions = 2048});
  config.layers = 96;
  config.padded_vocabulary = 51200;
  return config;
}

GPTConfig llama3() {
  GPTConfig config = llama_config({.hidden = 4096, .ffn_hidden = 14336, .heads = 32, .positions = 8192});
  config.layers = 32;
  config.query_groups = 8;
  config.padded_vocabulary = 128256;
  return config;
}

constexpr StageSpec whole_model{.layers = 32};

double flops(const GPTConfig& config, const BatchShape& batch,
             FlopsConvention convention = FlopsConvention::causal) {
  return training_flops(gpt_plan(config, {}), batch, convention);
}

// num_floating_point_operations() of Megatron-LM, current and core 0.7.
double megatron(const GPTConfig& m, const BatchShape& batch, FlopsConvention convention) {
  const double h = double(m.hidden), q = double(m.heads * m.kv_channels), L = double(batch.sequence_length);
  const double kv = double(m.query_groups * m.kv_channels), layers = double(m.layers),
               V = double(m.padded_vocabulary);
  const double tokens = double(batch.samples) * L, ffn = double(m.ffn_hidden);
  const bool gated = is_gated(m.activation);
  if (convention == FlopsConvention::full) {
    const double attention = (1.0 + double(m.query_groups) / double(m.heads) + L / h) * q / h;
    return 12.0 * tokens * layers * h * h *
           (attention + ffn / h * (gated ? 1.5 : 1.0) + V / (2.0 * layers * h));
  }
  const double squares = batch.squared_lengths.value_or(tokens * L);
  return 6.0 * tokens * (layers * (h * ffn * (gated ? 3.0 : 2.0) + h * (q + 2.0 * kv) + q * h) + h * V) +
         6.0 * layers * q * squares;
}

TEST(ModelFlops, MatchMegatronsFormulas) {
  for (GPTConfig model : {gpt3(), llama3()}) {
    for (const bool narrow : {false, true}) {
      if (narrow) model.kv_channels /= 2;
      for (const auto convention : {FlopsConvention::causal, FlopsConvention::full}) {
        const BatchShape batch{.samples = 16, .sequence_length = 2048};
        EXPECT_NEAR(flops(model, batch, convention) / megatron(model, batch, convention), 1.0, 1e-12);
      }
    }
  }
}

TEST(ModelFlops, MatchNumbersOfMegatron) {
  GPTConfig model = gpt2_config({.hidden = 64, .ffn_hidden = 256, .heads = 4, .positions = 128});
  model.layers = 4;
  model.padded_vocabulary = 512;
  EXPECT_EQ(flops(model, {.samples = 6, .sequence_length = 128}), 1207959552.0);
  model.query_groups = 2;
  model.activation = Activation::swiglu;
  EXPECT_EQ(flops(model, {.samples = 6, .sequence_length = 128}), 1434451968.0);
}

TEST(ModelFlops, MatchMegatronsNumberOfExperts) {
  GPTConfig model = gpt2_config({.hidden = 64, .ffn_hidden = 256, .heads = 4, .positions = 128});
  model.layers = 4;
  model.padded_vocabulary = 512;
  model.activation = Activation::swiglu;
  model.experts.layers = {1, 1, 1, 1};
  model.experts.options.router = {.experts = 8, .routing = {.topk = 2}};
  model.experts.options.experts = {.experts = 8, .ffn_hidden = 96};
  EXPECT_EQ(flops(model, {.samples = 6, .sequence_length = 128}), 1283457024.0);
}

// Megatron-LM's number is that of a model with one multi-token prediction layer, which is taken as a fifth
// layer with its own head and projection.
TEST(ModelFlops, MatchMegatronsNumberOfSharedExperts) {
  GPTConfig model = gpt2_config({.hidden = 64, .ffn_hidden = 256, .heads = 4, .positions = 128});
  model.layers = 5;
  model.padded_vocabulary = 512;
  model.activation = Activation::swiglu;
  model.experts.layers = {0, 1, 1, 1, 1};
  model.experts.options.router = {.experts = 8, .routing = {.topk = 4}};
  model.experts.options.experts = {.experts = 8, .ffn_hidden = 32};
  model.experts.options.shared = {.mlp = {.ffn_hidden = 64}, .gate = false};
  const double tokens = 6 * 128, head = 64 * 512, projection = 2 * 64 * 64 + 3 * 64;
  EXPECT_EQ(flops(model, {.samples = 6, .sequence_length = 128}) + 6 * tokens * (head + projection),
            1812824064.0);
}

// Ranks share the FLOPs of experts, whichever ranks see a token.
TEST(ModelFlops, AreSharedByRanksOfExperts) {
  GPTConfig model = llama3();
  model.experts.layers.assign(32, 1);
  model.experts.options.router = {.experts = 8, .routing = {.topk = 2}};
  model.experts.options.experts = {.experts = 8, .ffn_hidden = 4096};
  const OperatorsOf operators = gpt_plan(model, {}).operators;
  RankBatch batch{.batch = {.samples = 4, .sequence_length = 512}};
  const double one = training_flops(operators(batch, whole_model));
  batch.expert_parallel = 4;
  EXPECT_EQ(training_flops(operators(batch, whole_model)), one) << "each rank has its own tokens";
  batch.tensor_parallel = 2;
  batch.sequence_parallel = true;
  for (const int64_t etp : {1, 2}) {
    batch.expert_tensor_parallel = etp;
    EXPECT_NEAR(2.0 * training_flops(operators(batch, whole_model)) / one, 1.0, 1e-12) << etp;
  }
}

TEST(ModelFlops, MatchThePublishedFormulaOfGpt3) {
  // 72 B L l h^2 (1 + L / 6h + V / 12lh), Narayanan et al. 2021 (arXiv:2104.04473) without recomputation.
  const double b = 1536, l = 2048, h = 12288, n = 96, v = 51200;
  const double paper = 72 * b * l * n * h * h * (1 + l / (6 * h) + v / (12 * n * h));
  const double ours = flops(gpt3(), {.samples = 1536, .sequence_length = 2048}, FlopsConvention::full);
  EXPECT_NEAR(ours / paper, 1.0, 1e-12);
}

TEST(ModelFlops, CountScoresWithinSegments) {
  const BatchShape whole{.samples = 4, .sequence_length = 512};
  BatchShape packed = whole;
  packed.squared_lengths = 4.0 * 2 * 256 * 256;  // two documents per sample: half the scores
  const double scores = 6.0 * 32 * 4096 * 4 * 512 * 512;
  EXPECT_NEAR(flops(llama3(), whole) - flops(llama3(), packed), scores / 2, scores * 1e-9);
}

TEST(ModelFlops, DoNotDependOnRecomputationOrLossChunks) {
  const BatchShape batch{.samples = 4, .sequence_length = 512};
  GPTConfig model = llama3();
  model.recompute.granularity = RecomputeConfig::Granularity::layers;
  model.loss_chunks = 8;
  EXPECT_NEAR(flops(model, batch) / flops(llama3(), batch), 1.0, 1e-12);
}

TEST(ModelFlops, RanksShareThem) {
  const OperatorsOf operators = gpt_plan(llama3(), {}).operators;
  RankBatch batch{.batch = {.samples = 4, .sequence_length = 512}};
  const double whole = training_flops(operators(batch, whole_model));
  batch.tensor_parallel = 4;
  EXPECT_NEAR(4.0 * training_flops(operators(batch, whole_model)) / whole, 1.0, 1e-12);
  const double stages =
      training_flops(operators(batch, {.layers = 20, .head = false})) +
      training_flops(operators(batch, {.first_layer = 20, .layers = 12, .embedding = false}));
  EXPECT_NEAR(4.0 * stages / whole, 1.0, 1e-12);
}

TEST(ModelFlops, AreUnknownWithoutOperators) {
  EXPECT_EQ(training_flops(ModelPlan{.towers = {{"decoder", 2}}}, {.samples = 1, .sequence_length = 8}), 0.0);
}

}  // namespace
}  // namespace teratron
