// BERT on a GPU against the same model on the CPU: losses, every gradient, rows with padding.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "teratron/device/device.h"
#include "teratron/models/bert/bert.h"
#include "teratron/models/transformer/select_positions.h"
#include "teratron/nn/attention/attention.h"
#include "teratron/optim/param_and_grad_buffer.h"
#include "teratron/testing/bert_models.h"
#include "teratron/testing/models.h"

namespace teratron::bert_gpu_test {
namespace {

constexpr int64_t length = 8;  // of bert_batch()

// Wide enough for every kernel.
BertConfig widened(BertConfig config) {
  config.hidden = 64;
  config.ffn_hidden = 256;
  config.kv_channels = 16;
  config.vocabulary = 501;
  config.padded_vocabulary = 512;
  return config;
}

std::vector<BertVariant> wide_variants() {
  std::vector<BertVariant> variants = bert_variants();
  for (BertVariant& variant : variants) variant.config = widened(variant.config);
  return variants;
}

// Biases and gains differ from their initial zeros and ones, so that no omission is hidden.
void disturb_vectors(ParameterSet& parameters) {
  at::Generator generator = at::detail::createCPUGenerator(11);
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters.all()) {
    if (parameter.tensor.dim() != 1) continue;
    const at::Tensor change = at::randn(parameter.tensor.sizes(), generator, at::kDouble) * 0.1;
    parameter.tensor.add_(change.to(parameter.tensor.options()));
  }
}

struct Place {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kDouble;
};

struct OneBert {
  OneBert(const BertConfig& config, const Place& place)
      : parameters({.dtype = place.dtype, .device = place.device, .seed = 3}),
        model(config, {parameters, {.layers = config.layers}, {}}) {
    disturb_vectors(parameters);
  }
  std::vector<LossTerm> losses(const MicroBatch& batch) {
    return model.losses(model.forward({}, batch, nullptr), batch);
  }
  ParameterSet parameters;
  Bert model;
};

struct Result {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> gradients;  // fp64, on the CPU
};

Result run(const BertConfig& config, const Place& place, const MicroBatch& host_batch) {
  OneBert bert(config, place);
  ParamAndGradBuffers buffer(bert.parameters, Mesh(), {.bucket_size = 1000, .average_in_collective = true});
  buffer.zero_grad();
  buffer.set_last_microbatch();
  const std::vector<LossTerm> terms = bert.losses(to_device(host_batch, place.device));
  Result result;
  at::Tensor sum;
  for (const LossTerm& term : terms) {
    const at::Tensor mean = term.sum / term.count;
    result.losses.push_back(mean.item<double>());
    sum = sum.defined() ? sum + mean : mean;
  }
  sum.backward();
  buffer.finish_grad_sync();
  for (Parameter& parameter : bert.parameters.all())
    result.gradients[parameter.name] = parameter.main_grad.cpu().to(at::kDouble);
  return result;
}

Result run(const BertConfig& config, const Place& place) {
  return run(config, place, bert_batch(config, 1, {0, test_samples}));
}

// Gradients smaller than `negligible` times the largest are compared on that scale: they are differences of
// larger numbers and carry their rounding.
struct Bound {
  double relative;
  double negligible = 1e-3;
};
constexpr Bound fp64{1e-11}, fp32{1e-5}, fp16{1e-2, 1e-2}, bf16{4e-2, 1e-2};

void expect_close(const Result& actual, const Result& expected, const Bound& bound) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(actual.losses[i], expected.losses[i], bound.relative * expected.losses[i]);
  double largest = 0.0;
  for (const auto& [name, gradient] : expected.gradients)
    largest = std::max(largest, gradient.norm().item<double>());
  for (const auto& [name, gradient] : expected.gradients) {
    const double error = (actual.gradients.at(name) - gradient).norm().item<double>();
    EXPECT_LT(error, bound.relative * std::max(gradient.norm().item<double>(), bound.negligible * largest))
        << name;
  }
}

// What a GPU computes in 16 bits must be as near to fp64 as what the CPU computes.
TEST(BertPrecision, CpuIsWithinTheBoundsOfTheGpu) {
  for (const BertVariant& variant : wide_variants()) {
    SCOPED_TRACE(variant.name);
    const Result exact = run(variant.config, {at::kCPU, at::kDouble});
    expect_close(run(variant.config, {at::kCPU, at::kFloat}), exact, fp32);
    expect_close(run(variant.config, {at::kCPU, at::kBFloat16}), exact, bf16);
  }
}

class GpuBert : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(GpuBert, MatchesCpuWithinRounding) {
  for (const BertVariant& variant : wide_variants()) {
    SCOPED_TRACE(variant.name);
    const Result exact = run(variant.config, {at::kCPU, at::kDouble});
    expect_close(run(variant.config, {at::kCUDA, at::kDouble}), exact, fp64);
    expect_close(run(variant.config, {at::kCUDA, at::kFloat}), exact, fp32);
    expect_close(run(variant.config, {at::kCUDA, at::kBFloat16}), exact, bf16);
    expect_close(run(variant.config, {at::kCUDA, at::kHalf}), exact, fp16);
  }
}

// Rows without padding, once as one segment each and once without segments, which other kernels compute.
TEST_F(GpuBert, FullRowsNeedNoSegments) {
  const BertConfig config = widened(small_bert_config());
  MicroBatch batch = bert_batch(config, 1, {0, test_samples});
  batch.tensors.set("cu_seqlens", at::arange(0, test_samples * length + 1, length, at::kInt));
  MicroBatch plain = batch;
  plain.tensors = {};
  for (const auto& [name, tensor] : batch.tensors) {
    if (name != "cu_seqlens") plain.tensors.set(name, tensor);
  }
  const Result exact = run(config, {}, batch);
  expect_close(run(config, {at::kCUDA, at::kFloat}, plain), exact, fp32);
  for (const auto& [dtype, bound] : {std::pair{at::kBFloat16, bf16}, {at::kHalf, fp16}}) {
    SCOPED_TRACE(at::toString(dtype));
    expect_close(run(config, {at::kCUDA, dtype}, batch), exact, bound);
    expect_close(run(config, {at::kCUDA, dtype}, plain), exact, bound);
  }
  const at::Tensor q =
      at::zeros({length, test_samples, 4, 16}, at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16));
  AttentionRequest request{.q_SBND = q, .k_SBGD = q, .v_SBGD = q, .mask = Mask::full};
  EXPECT_EQ(attention_backend(request), "cudnn");
  request.segments.cu_seqlens_q = batch["cu_seqlens"].to(at::kCUDA);
  EXPECT_EQ(attention_backend(request), "flash-varlen");
}

// The tokens of padded rows alone, packed.
TEST_F(GpuBert, PackedRowsMatchTheCpusPaddedRows) {
  for (const BertVariant& variant : wide_variants()) {
    SCOPED_TRACE(variant.name);
    const Result exact = run(variant.config, {at::kCPU, at::kDouble});
    const MicroBatch packed = packed_bert_model(variant.config, 1).batch(1, {0, test_samples});
    ASSERT_GT(packed.padded_length, 0);
    expect_close(run(variant.config, {at::kCUDA, at::kDouble}, packed), exact, fp64);
    expect_close(run(variant.config, {at::kCUDA, at::kFloat}, packed), exact, fp32);
    expect_close(run(variant.config, {at::kCUDA, at::kBFloat16}, packed), exact, bf16);
    expect_close(run(variant.config, {at::kCUDA, at::kHalf}, packed), exact, fp16);
  }
}

TEST_F(GpuBert, PaddingInfluencesNothing) {
  const BertConfig config = widened(small_bert_config());
  const MicroBatch batch = bert_batch(config, 1, {0, test_samples});
  const at::Tensor starts = batch["cu_seqlens"];
  at::Tensor padding_BS = at::zeros({test_samples, length}, at::kLong);
  for (int64_t i = 0; i + 1 < starts.size(0); ++i) {
    const int64_t first = starts[i].item<int32_t>(), end = starts[i + 1].item<int32_t>();
    if (first % length != 0) padding_BS.view(-1).narrow(0, first, end - first).fill_(1);
  }
  ASSERT_GT(padding_BS.sum().item<int64_t>(), 0);
  MicroBatch changed = batch;
  changed.tensors.set("tokens", (batch["tokens"] + padding_BS.t()).remainder(config.vocabulary));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(at::toString(dtype));
    OneBert bert(config, {at::kCUDA, dtype});
    const auto losses = [&bert](const MicroBatch& host) {
      const std::vector<LossTerm> terms = bert.losses(to_device(host, at::kCUDA));
      return at::stack({terms[0].sum, terms[1].sum});
    };
    EXPECT_TRUE(at::equal(losses(changed), losses(batch)));
  }
}

TEST_F(GpuBert, SelectsPositionsAsTheCpuDoes) {
  const at::Tensor hidden_SBH = at::randn({length, 3, 64}),
                   positions_NB = at::randint(length, {5, 3}, at::kLong);
  positions_NB.select(0, 1).copy_(positions_NB.select(0, 0));  // twice: gradients add up
  const at::Tensor weight_NBH = at::randint(-3, 4, {5, 3, 64}).to(at::kFloat);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(at::toString(dtype));
    const auto on = [&](at::Device device) {
      const at::Tensor x = hidden_SBH.to(device, dtype).detach().requires_grad_(true);
      const at::Tensor y = select_positions(x, positions_NB.to(device), {});
      (y * weight_NBH.to(device, dtype)).sum().backward();
      return std::pair{y.detach().cpu(), x.grad().cpu()};
    };
    const auto [expected, expected_grad] = on(at::kCPU);
    const auto [actual, actual_grad] = on(at::kCUDA);
    EXPECT_TRUE(at::equal(actual, expected));
    EXPECT_TRUE(at::equal(actual_grad, expected_grad));
  }
}

}  // namespace
}  // namespace teratron::bert_gpu_test
