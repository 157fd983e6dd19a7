// Properties of mixed-precision training.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"

namespace teratron {
namespace {

// 64 small additions to a large residual: bf16 loses them, fp32 does not.
double error_of_stream(bool fp32_residual) {
  TestSizes sizes{.hidden = 64, .ffn_hidden = 128, .heads = 4};
  GPTConfig config = gpt2_config(sizes);
  config.layers = 32;
  config.init_std = 0.1;
  const LossAndGrads exact = run_step({.config = config});
  config.fp32_residual = fp32_residual;
  const LossAndGrads rounded = run_step({.config = config, .dtype = at::kBFloat16});
  return std::abs(rounded.loss - exact.loss) / exact.loss +
         relative_error(rounded.gradients.at("embedding.word_embeddings.weight"),
                        exact.gradients.at("embedding.word_embeddings.weight"));
}

TEST(Fp32Residual, IsMoreAccurateThanBf16) {
  EXPECT_LT(error_of_stream(true), 0.6 * error_of_stream(false));
}

TEST(Fp32Residual, IsTheDtypeBetweenStages) {
  GPTConfig config = gpt2_config();
  config.fp32_residual = true;
  ParameterSet parameters({.dtype = at::kBFloat16, .seed = 3});
  GPT first(parameters, config, {.layers = 1, .head = false}, {});
  const MicroBatch batch = test_batch(config, {}, false);
  EXPECT_EQ(first.forward({}, batch, nullptr)["hidden"].scalar_type(), at::kFloat);
}

TEST(Fp32Residual, ChangesNothingInFp32) {
  for (const TestVariant& variant : option_variants()) {
    TestStep step{.config = variant.config, .dtype = at::kFloat};
    const LossAndGrads without = run_step(step);
    step.config.fp32_residual = true;
    const LossAndGrads with = run_step(step);
    EXPECT_EQ(with.loss, without.loss) << variant.name;
    for (const auto& [name, gradient] : without.gradients) {
      EXPECT_TRUE(at::equal(with.gradients.at(name), gradient)) << variant.name << " " << name;
    }
  }
}

TEST(Fp32Residual, MatchesOneRank) {
  for (const TestVariant& variant : family_variants()) {
    TestStep step{.config = variant.config, .dtype = at::kBFloat16};
    step.config.fp32_residual = true;
    const LossAndGrads serial = run_step(step);
    step.layout = {.tp = 2, .sequence_parallel = true};
    const LossAndGrads parallel = run_step(step);
    EXPECT_NEAR(parallel.loss, serial.loss, 1e-3 * serial.loss) << variant.name;
    for (const auto& [name, gradient] : serial.gradients) {
      EXPECT_LT(relative_error(parallel.gradients.at(name), gradient), 0.05) << variant.name << " " << name;
    }
  }
}

// The dtype of main_grad is the dtype of the accumulation.
TEST(GradientsInBf16, AccumulateInMainGrad) {
  for (const TestVariant& variant : family_variants()) {
    std::map<std::string, at::Tensor> sums[2];
    for (const bool narrow : {false, true}) {
      ParameterSet parameters({.dtype = at::kBFloat16, .seed = 3});
      GPT model(parameters, variant.config, {.layers = variant.config.layers}, {});
      for (Parameter& parameter : parameters.all()) {
        parameter.main_grad = at::zeros_like(parameter.tensor.detach(), narrow ? at::kBFloat16 : at::kFloat);
      }
      const MicroBatch batch = test_batch(variant.config, {}, false);
      for (int i = 0; i < 4; ++i)
        model.token_losses(model.forward({}, batch, nullptr), batch).mean().backward();
      for (const Parameter& parameter : parameters.all()) sums[narrow][parameter.name] = parameter.main_grad;
    }
    for (const auto& [name, sum] : sums[0]) {
      EXPECT_EQ(sums[1].at(name).scalar_type(), at::kBFloat16);
      EXPECT_LT(relative_error(sums[1].at(name), sum), 2e-2) << variant.name << " " << name;
    }
  }
}

TEST(MasterWeights, AccumulateSmallUpdates) {
  const Mesh mesh;
  TrainEngine engine(engine_options(gpt2_config(), {}, at::kBFloat16), mesh);
  const at::Tensor before = engine.parameters().find("decoder.final_layernorm.weight")->tensor.clone();
  // Updates far below bf16's unit in the last place of 1.0 (2^-8).
  for (int64_t step = 0; step < 60; ++step) train_step(engine, {}, {}, 0, {.lr = 2e-4});
  const at::Tensor after = engine.parameters().find("decoder.final_layernorm.weight")->tensor;
  EXPECT_GT((after - before).abs().max().item<double>(), 2e-3);
}

TEST(MasterWeights, ResetFromModelWeights) {
  TrainEngine engine(engine_options(gpt2_config(), {}, at::kBFloat16), Mesh());
  train_step(engine, {}, {}, 0, {.lr = 1e-3}).wait();
  const std::string name = "decoder.layers.0.mlp.linear_fc1.weight";
  const auto master = [&] {
    for (const StateTensor& state : engine.optimizer().state()) {
      if (state.name == "optimizer.param." + name) return state.read();
    }
    return at::Tensor();
  };
  at::Tensor weight = engine.parameters().find(name)->tensor.detach().view(-1);
  EXPECT_FALSE(at::equal(master(), weight.to(at::kFloat)));
  weight.fill_(1.5);
  engine.optimizer().reset_master_weights();
  EXPECT_TRUE(at::equal(master(), at::full_like(master(), 1.5)));
}

// Queries and keys so large that scores overflow fp16 unless divided by the layer number.
TEST(QueryKeyScaling, KeepsFp16ScoresFinite) {
  GPTConfig config = gpt2_config();
  config.layers = 8;
  config.attention_dropout = 0.1;  // selects the backend that stores scores
  for (const bool scaling : {false, true}) {
    config.query_key_layer_scaling = scaling;
    ParameterSet parameters({.dtype = at::kHalf, .seed = 3});
    GPT model(parameters, config, {.layers = config.layers}, {});
    for (Parameter& parameter : parameters.all()) {
      const at::NoGradGuard no_grad;
      if (parameter.name == "decoder.layers.7.self_attention.linear_qkv.weight") {
        parameter.tensor.view({4, 3, -1}).narrow(1, 0, 2).mul_(4000.0);
      }
    }
    const MicroBatch batch = test_batch(config, {}, false);
    const at::Tensor loss = model.token_losses(model.forward({}, batch, nullptr), batch);
    EXPECT_EQ(at::isfinite(loss).all().item<bool>(), scaling);
  }
}

}  // namespace
}  // namespace teratron
