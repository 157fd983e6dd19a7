// The bytes that operators declare against those that a built GPT allocates.
#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"
#include "teratron/device/device.h"
#include "teratron/models/gpt/gpt_operators.h"
#include "teratron/plan/activation_memory.h"
#include "teratron/testing/memory_meter.h"
#include "teratron/testing/models.h"

namespace teratron {
namespace {

using Granularity = RecomputeConfig::Granularity;
using Method = RecomputeConfig::Method;

constexpr TestSizes sizes{.hidden = 64,
                          .ffn_hidden = 256,
                          .heads = 4,
                          .vocabulary = 1000,
                          .padded_vocabulary = 1024,
                          .positions = 128};

struct Case {
  std::string name;
  GPTConfig config;
  at::ScalarType dtype = at::kFloat;
  std::optional<Fp8Options> fp8 = {};
  bool documents = false;
};

RankBatch rank_batch(const Case& test) {
  return {.batch = {.samples = 4, .sequence_length = test.config.max_positions},
          .segmented = test.documents,
          .dtype = test.dtype == at::kFloat ? Dtype::f32 : Dtype::bf16,
          .fp8 = test.fp8.has_value(),
          .fp8_weight_gradients = !test.fp8 || test.fp8->weight_gradients,
          .gpu = false};
}

at::Tensor forward(GPT& model, const Activations& input, const MicroBatch& batch) {
  const Activations output = model.forward(input, batch, nullptr);
  return model.stage().head ? model.token_losses(output, batch).mean() : output["hidden"];
}

void backward(const at::Tensor& output) {
  output.backward(at::ones_like(output));
}

struct Bytes {
  double saved = 0.0, peak = 0.0;
};

// On this rank, after a first step, which allocates gradients, FP8 scales and weights.
Bytes allocated(const Case& test, const StageSpec& stage, const TensorParallel& parallel) {
  ParameterSet parameters({.dtype = test.dtype, .seed = 3, .fp8 = test.fp8});
  GPT model(parameters, test.config, stage, parallel);
  const MicroBatch batch = test_batch(test.config, {}, test.documents);
  Activations input;
  if (!stage.embedding) {
    const int64_t rows = test.config.max_positions / (parallel.sequence_parallel ? parallel.group.size : 1);
    input.set(
        "hidden",
        at::randn({rows, 4, test.config.hidden}, at::TensorOptions().dtype(test.dtype)).requires_grad_());
  }
  backward(forward(model, input, batch));
  Bytes bytes;
  {
    // The last offloaded layers of a forward leave during the next one.
    const MemoryMeter meter;
    const at::Tensor earlier = forward(model, input, batch);
    const int64_t before = meter.live();
    const at::Tensor output = forward(model, input, batch);
    // The first layer saves the received input, which is not counted; a sent output is not saved.
    const at::Tensor& received = input["hidden"];
    bytes.saved = static_cast<double>(meter.live() - before + (received.defined() ? received.nbytes() : 0) -
                                      (stage.head ? 0 : output.nbytes()));
  }
  const MemoryMeter meter;
  backward(forward(model, input, batch));
  bytes.peak = static_cast<double>(meter.peak());
  return bytes;
}

Case with_recompute(Case test, const std::string& name, const RecomputeConfig& recompute) {
  test.name += ", " + name;
  test.config.recompute = recompute;
  return test;
}

Case with_offload(Case test, int64_t layers) {
  test.name += fmt::format(", {} layers offloaded", layers);
  test.config.offload = {.layers = layers, .min_bytes = 0};
  return test;
}

std::vector<Case> offloaded_cases(const Case& gpt2, const Case& grouped) {
  std::vector<Case> all = {with_offload(grouped, 1)};
  const RecomputeConfig each{.granularity = Granularity::layers};
  const RecomputeConfig pairs{.granularity = Granularity::layers, .layers = 2};
  const RecomputeConfig block{.granularity = Granularity::layers, .method = Method::block, .layers = 2};
  for (const int64_t layers : {1, 2, 4}) {
    all.push_back(with_offload(gpt2, layers));
    all.push_back(with_offload(with_recompute(gpt2, "uniform 1", each), layers));
    all.push_back(with_offload(with_recompute(gpt2, "uniform 2", pairs), layers));
    all.push_back(with_offload(with_recompute(gpt2, "block", block), layers));
  }
  return all;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (TestVariant& variant : all_variants(sizes)) {
    variant.config.layers = 4;
    if (!variant.config.no_rope.empty()) variant.config.no_rope.resize(4, 0);
    // A window's mask is small for windows of real models only.
    if (!variant.config.windows.empty()) continue;
    all.push_back({variant.name, variant.config});
  }
  Case gpt2{"gpt2", gpt2_config(sizes)};
  gpt2.config.layers = 5;
  Case dropout = gpt2;
  dropout.name = "dropout";
  dropout.config.hidden_dropout = dropout.config.attention_dropout = 0.1;
  Case grouped{"grouped dropout", llama_config(sizes)};
  grouped.config.attention_dropout = 0.1;
  for (const Case& base : {gpt2, dropout, grouped}) {
    all.push_back(base);
    all.push_back(with_recompute(base, "selective", {.granularity = Granularity::attention_core}));
    all.push_back(with_recompute(base, "uniform 1", {.granularity = Granularity::layers}));
    all.push_back(with_recompute(base, "uniform 2", {.granularity = Granularity::layers, .layers = 2}));
    all.push_back(with_recompute(base, "block",
                                 {.granularity = Granularity::layers, .method = Method::block, .layers = 2}));
  }
  for (Case& test : offloaded_cases(gpt2, grouped)) all.push_back(std::move(test));
  Case hidden = gpt2;
  hidden.name = "hidden dropout";
  hidden.config.hidden_dropout = 0.1;
  all.push_back(hidden);
  Case documents = gpt2;
  documents.name = "documents";
  documents.documents = true;
  all.push_back(documents);
  for (const int64_t vocabulary : {256, 8192}) {
    for (const int64_t chunks : {1, 8}) {
      Case test = gpt2;
      test.name = fmt::format("vocabulary {}, {} chunks", vocabulary, chunks);
      test.config.vocabulary = test.config.padded_vocabulary = vocabulary;
      test.config.loss_chunks = chunks;
      all.push_back(test);
      all.push_back(with_recompute(test, "uniform 1", {.granularity = Granularity::layers}));
    }
  }
  Case wide{"bf16 in an fp32 residual", gpt2.config, at::kBFloat16};
  wide.config.fp32_residual = true;
  all.push_back(wide);
  Case fp8{"fp8", gpt2.config, at::kBFloat16, Fp8Options{}};
  fp8.config.bf16_layers_at_start = 1;
  all.push_back(fp8);
  fp8.name = "fp8 without its weight gradients";
  fp8.fp8->weight_gradients = false;
  all.push_back(fp8);
  return all;
}

TEST(Operators, SaveWhatTheModelSaves) {
  at::set_num_threads(1);  // the tensors are tiny
  bool all_run = true;
  for (const Case& test : cases()) {
    if (computes_in_f32(test.dtype)) {
      all_run = false;
      continue;
    }
    const StageSpec whole{.layers = test.config.layers};
    const Bytes real = allocated(test, whole, {});
    const ActivationMemory declared = activation_memory(gpt_operators(test.config)(rank_batch(test), whole));
    EXPECT_NEAR(declared.saved / real.saved, 1.0, 0.002) << test.name;
    // CPU kernels, of softmax and in half precision, have temporaries that the GPU's do not have.
    const bool exact = test.dtype == at::kFloat && test.config.attention_dropout == 0.0;
    EXPECT_NEAR(declared.peak / real.peak, 1.0, exact ? 0.01 : 0.07) << test.name;
  }
  if (!all_run) GTEST_SKIP() << "this processor computes bf16 in f32; all other cases were compared";
}

class StageOperators : public testing::TestWithParam<int64_t> {};  // layers that are offloaded

INSTANTIATE_TEST_SUITE_P(Offloaded, StageOperators, testing::Values(0, 1, 2));

TEST_P(StageOperators, SaveTheirStageAndShard) {
  Case test{"llama", llama_config(sizes)};
  test.config.layers = 6;
  test.config.offload = {.layers = GetParam(), .min_bytes = 0};
  const std::vector<StageSpec> stages = {{.layers = 2, .head = false},
                                         {.first_layer = 2, .layers = 3, .embedding = false, .head = false},
                                         {.first_layer = 5, .layers = 1, .embedding = false}};
  for (const StageSpec& stage : stages) {
    for (const bool sequence_parallel : {false, true}) {
      run_ranks(MeshOptions{.tp = 2}, [&](const Mesh& mesh) {
        const TensorParallel parallel{mesh.group(Axis::tp), sequence_parallel};
        const Bytes real = allocated(test, stage, parallel);
        RankBatch batch = rank_batch(test);
        batch.tensor_parallel = 2;
        batch.sequence_parallel = sequence_parallel;
        const ActivationMemory declared = activation_memory(gpt_operators(test.config)(batch, stage));
        EXPECT_NEAR(declared.saved / real.saved, 1.0, 0.005)
            << "stage from layer " << stage.first_layer << ", sequence parallel " << sequence_parallel;
      });
    }
  }
}

TEST(Operators, PeakAsTheGpuDoes) {
  if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
  const at::Device device(at::kCUDA, 0);
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(at::kCUDA);
  for (Case test : cases()) {
    if (test.config.kv_channels % 8 != 0) continue;
    test.config.hidden = 1024, test.config.heads = 16, test.config.kv_channels = 64;
    test.config.query_groups = test.config.query_groups < 4 ? 4 : 16;
    test.config.ffn_hidden = 4096, test.config.max_positions = 2048;
    ParameterSet parameters({.dtype = at::kBFloat16, .device = device, .seed = 3, .fp8 = test.fp8});
    const StageSpec whole{.layers = test.config.layers};
    GPT model(parameters, test.config, whole, {});
    const MicroBatch batch = to_device(test_batch(test.config, {}, test.documents), device);
    backward(forward(model, {}, batch));
    const int64_t before = allocator->getDeviceStats(0).allocated_bytes[0].current;
    allocator->resetPeakStats(0);
    backward(forward(model, {}, batch));
    const auto peak = static_cast<double>(allocator->getDeviceStats(0).allocated_bytes[0].peak - before);
    RankBatch rank = rank_batch(test);
    rank.dtype = Dtype::bf16;
    rank.gpu = true;
    EXPECT_NEAR(activation_memory(gpt_operators(test.config)(rank, whole)).peak / peak, 1.0, 0.05)
        << test.name;
  }
}

}  // namespace
}  // namespace teratron
