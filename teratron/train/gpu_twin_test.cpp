// The model on a GPU against the same model on the CPU: loss and every gradient.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "teratron/model/gpt.h"
#include "teratron/train/device.h"

namespace teratron {
namespace {

constexpr int64_t sequence = 64;
constexpr int64_t samples = 3;

GPTConfig gpt2_config() {
  return {.layers = 2,
          .hidden = 64,
          .ffn_hidden = 256,
          .heads = 4,
          .query_groups = 4,
          .kv_channels = 16,
          .vocabulary = 501,
          .padded_vocabulary = 512,
          .max_positions = sequence};
}

GPTConfig llama_config() {
  GPTConfig config = gpt2_config();
  config.query_groups = 2;
  config.position = PositionEmbedding::rope;
  config.norm.kind = NormKind::rms;
  config.activation = Activation::swiglu;
  config.linear_bias = false;
  config.tied_embeddings = false;
  return config;
}

GPTConfig dropout_config() {
  GPTConfig config = gpt2_config();
  config.hidden_dropout = 0.1;
  config.attention_dropout = 0.1;
  return config;
}

struct Result {
  double loss = 0.0;
  std::vector<std::pair<std::string, at::Tensor>> gradients;
};

Result run(const GPTConfig& config, at::Device device, at::ScalarType dtype) {
  ParameterSet parameters({.dtype = dtype, .device = device, .seed = 3});
  GPT model(parameters, config, {.layers = config.layers}, {});
  at::Generator generator = at::detail::createCPUGenerator(7);
  const at::Tensor text = at::randint(0, config.vocabulary, {sequence + 1, samples}, generator, at::kLong);
  const at::Tensor positions =
      at::arange(sequence, at::kLong).unsqueeze(1).expand({sequence, samples}).contiguous();
  const MicroBatch batch{.tokens_SB = text.narrow(0, 0, sequence).contiguous().to(device),
                         .positions_SB = positions.to(device),
                         .labels_SB = text.narrow(0, 1, sequence).contiguous().to(device)};
  const at::Tensor loss = model.loss(model.forward({}, batch), batch).mean();
  loss.backward();
  Result result{.loss = loss.item<double>()};
  for (const Parameter& parameter : parameters.all()) {
    result.gradients.emplace_back(parameter.name, parameter.main_grad.to(at::kCPU, at::kDouble));
  }
  return result;
}

void expect_close(const Result& actual, const Result& expected, double bound) {
  EXPECT_NEAR(actual.loss, expected.loss, bound * expected.loss);
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    const auto& [name, gradient] = expected.gradients[i];
    const double error = (actual.gradients[i].second - gradient).norm().item<double>();
    EXPECT_LT(error, bound * gradient.norm().item<double>()) << name;
  }
}

class GpuTwin : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(GpuTwin, HasTheCpusGradientsInFp64) {
  for (const GPTConfig& config : {gpt2_config(), llama_config(), dropout_config()}) {
    expect_close(run(config, at::kCUDA, at::kDouble), run(config, at::kCPU, at::kDouble), 1e-11);
  }
}

TEST_F(GpuTwin, HasTheFp64GradientsWithinRounding) {
  for (const GPTConfig& config : {gpt2_config(), llama_config(), dropout_config()}) {
    const Result exact = run(config, at::kCPU, at::kDouble);
    expect_close(run(config, at::kCPU, at::kFloat), exact, 1e-5);
    expect_close(run(config, at::kCUDA, at::kFloat), exact, 1e-5);
    expect_close(run(config, at::kCUDA, at::kBFloat16), exact, 3e-2);
    expect_close(run(config, at::kCUDA, at::kHalf), exact, 1e-2);
  }
}

}  // namespace
}  // namespace teratron
