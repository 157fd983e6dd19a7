// Recomputation is bitwise equal and saves memory.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include "teratron/device/device.h"
#include "teratron/nn/dropout.h"
#include "teratron/nn/mlp.h"
#include "teratron/testing/models.h"

namespace teratron {
namespace {

using Granularity = RecomputeConfig::Granularity;
using Method = RecomputeConfig::Method;

struct Plan {
  const char* name;
  RecomputeConfig config;
};

const std::vector<Plan>& plans() {
  static const std::vector<Plan> all = {
      {"selective", {.granularity = Granularity::attention_core}},
      {"uniform 1", {.granularity = Granularity::layers}},
      {"uniform 2", {.granularity = Granularity::layers, .layers = 2}},
      {"uniform 5", {.granularity = Granularity::layers, .layers = 5}},
      {"block 1", {.granularity = Granularity::layers, .method = Method::block}},
      {"block 2", {.granularity = Granularity::layers, .method = Method::block, .layers = 2}}};
  return all;
}

TEST(Recompute, IsBitwiseEqual) {
  for (const TestVariant& variant : deep_variants()) {
    for (const Plan& plan : plans()) {
      TestStep step{.config = variant.config, .dtype = at::kFloat, .documents = true};
      const TestStep stored = step;
      step.config.recompute = plan.config;
      expect_same_bits(step, stored, variant.name + ", " + plan.name);
    }
  }
}

TEST(Recompute, IsBitwiseEqualInEveryLayout) {
  for (const TestLayout& layout :
       {TestLayout{.tp = 2}, TestLayout{.tp = 2, .sequence_parallel = true}, TestLayout{.dp = 2}}) {
    for (const TestVariant& variant : family_variants()) {
      for (const Plan& plan : plans()) {
        TestStep step{.config = variant.config, .layout = layout, .dtype = at::kFloat};
        const TestStep stored = step;
        step.config.recompute = plan.config;
        step.config.recompute.distribute_inputs =
            plan.config.granularity == Granularity::layers && !layout.sequence_parallel && layout.tp > 1;
        expect_same_bits(step, stored, variant.name + ", " + plan.name);
      }
    }
  }
}

// In a pipeline several micro-batches are in flight: on_grad_ready is called after the last backward.
TEST(Recompute, CountsPendingGradsOverMicroBatches) {
  for (const RecomputeConfig& recompute : {RecomputeConfig{}, plans()[1].config, plans()[2].config}) {
    GPTConfig config = gpt2_config();
    config.recompute = recompute;
    ParameterSet parameters({.dtype = at::kFloat, .seed = 3});
    GPT model(parameters, config, {.layers = config.layers}, {});
    std::map<std::string, int> reports;
    for (Parameter& parameter : parameters.all()) {
      parameter.on_grad_ready = [&reports, &parameter] { reports[parameter.name] += 1; };
    }
    const MicroBatch batch = test_batch(config, {}, false);
    std::vector<at::Tensor> losses;
    for (int i = 0; i < 3; ++i)
      losses.push_back(model.token_losses(model.forward({}, batch, nullptr), batch).mean());
    for (int i = 0; i < 2; ++i) losses[i].backward();
    EXPECT_TRUE(reports.empty());
    losses[2].backward();
    for (const Parameter& parameter : parameters.all()) {
      EXPECT_EQ(reports[parameter.name], 1) << parameter.name;
      EXPECT_EQ(parameter.pending_grads, 0) << parameter.name;
    }
  }
}

// Bytes of tensors on the CPU.
class Meter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }

 private:
  int64_t live_ = 0;
  int64_t peak_ = 0;
};

struct Footprint {
  int64_t saved = 0;  // between forward and backward
  int64_t peak = 0;
};

constexpr TestSizes measured_sizes{.hidden = 64, .ffn_hidden = 256, .heads = 4, .positions = 128};

GPTConfig measured_config(const RecomputeConfig& recompute) {
  GPTConfig config = gpt2_config(measured_sizes);
  config.layers = 6;
  config.attention_dropout = 0.1;
  config.recompute = recompute;
  return config;
}

Footprint footprint(const GPTConfig& config) {
  ParameterSet parameters({.dtype = at::kFloat, .seed = 3});
  GPT model(parameters, config, {.layers = config.layers}, {});
  const MicroBatch batch = test_batch(config, {}, false);
  model.token_losses(model.forward({}, batch, nullptr), batch).mean().backward();  // allocates the gradients
  const auto meter = std::make_shared<Meter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  const at::Tensor loss = model.token_losses(model.forward({}, batch, nullptr), batch).mean();
  const int64_t saved = meter->live();
  loss.backward();
  return {saved, meter->peak()};
}

TEST(Recompute, SavesMemory) {
  const Footprint all = footprint(measured_config({}));
  const Footprint selective = footprint(measured_config(plans()[0].config));
  const Footprint each = footprint(measured_config(plans()[1].config));
  const Footprint pairs = footprint(measured_config(plans()[2].config));
  const Footprint first_two = footprint(measured_config(plans()[5].config));
  constexpr int64_t scores = int64_t{4} * 4 * 128 * 128 * 4;  // bytes of one layer's
  constexpr int64_t hidden = int64_t{128} * 4 * 64 * 4;       // bytes of one layer's input
  EXPECT_GE(all.saved - selective.saved, 6 * 2 * scores - 6 * 4 * hidden) << "P and dropout(P) of six layers";
  EXPECT_LE(each.saved, all.saved - 6 * 2 * scores);
  EXPECT_NEAR(static_cast<double>(each.saved - pairs.saved), 3.0 * hidden, 0.2 * hidden);
  EXPECT_NEAR(static_cast<double>(all.saved - first_two.saved),
              static_cast<double>(all.saved - each.saved) / 3.0,
              0.1 * static_cast<double>(all.saved - each.saved));
  for (const Footprint& less : {selective, each, pairs, first_two}) EXPECT_LT(less.peak, all.peak);
  EXPECT_LT(each.peak, all.peak / 2);
}

// Frozen embeddings give the first unit inputs without gradients; its layers' parameters have them.
TEST(Recompute, FrozenInputsAreStillRecomputed) {
  const auto run = [](const RecomputeConfig& recompute, int64_t& saved) {
    GPTConfig config = measured_config(recompute);
    ParameterSet parameters({.dtype = at::kFloat, .seed = 3});
    GPT model(parameters, config, {.layers = config.layers, .head = false}, {});
    for (Parameter& parameter : parameters.all())
      if (parameter.name.starts_with("embedding.")) freeze(parameter);
    const MicroBatch batch = test_batch(config, {}, false);
    const auto meter = std::make_shared<Meter>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
    const at::Tensor sum = model.forward({}, batch, nullptr)["hidden"].square().sum();
    saved = meter->live();
    sum.backward();
    return parameters.all().back().main_grad.clone();
  };
  int64_t all = 0, whole = 0;
  const at::Tensor expected = run({}, all);
  const at::Tensor actual = run({.granularity = Granularity::layers, .layers = 6}, whole);
  EXPECT_TRUE(at::equal(actual, expected));
  EXPECT_LT(whole, all / 4);
}

// The activation, saved for fc2's weight gradient, is freed before the gradient of gate|up is computed.
TEST(Mlp, FreesActivationsInBackward) {
  constexpr int64_t tokens = 256, hidden = 16, ffn = 1024;
  ParameterSet parameters({.dtype = at::kFloat, .seed = 3});
  Mlp mlp(Scope(parameters),
          {.hidden = hidden, .ffn_hidden = ffn, .activation = Activation::swiglu, .bias = false}, {});
  const at::Tensor x = at::randn({tokens, 1, hidden}).requires_grad_();
  const auto run = [&] {
    return apply_bias_grad(mlp.forward_add_residual(x, {.residual_SBH = x, .dropout = {}})).sum();
  };
  run().backward();  // allocates the gradients
  const auto meter = std::make_shared<Meter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  run().backward();
  constexpr double unit = 4.0 * tokens * ffn;  // bytes of the activation
  EXPECT_LT(static_cast<double>(meter->peak()) / unit, 7.5) << "8 with the activation saved to the end";
}

// Sums over tokens are split, so the last bits may differ.
TEST(LossChunks, MatchTheUnchunkedLoss) {
  for (const TestLayout& layout :
       {TestLayout{}, TestLayout{.tp = 2}, TestLayout{.tp = 2, .sequence_parallel = true}}) {
    for (const TestVariant& variant : family_variants()) {
      TestStep step{.config = variant.config, .layout = layout, .dtype = at::kDouble, .documents = true};
      const LossAndGrads whole = run_step(step);
      for (const int64_t chunks : {2, 3, 4}) {
        step.config.loss_chunks = chunks;
        const LossAndGrads cut = run_step(step);
        EXPECT_NEAR(cut.loss, whole.loss, 1e-13 * whole.loss) << variant.name;
        ASSERT_EQ(cut.gradients.size(), whole.gradients.size());
        for (const auto& [name, gradient] : whole.gradients) {
          const double error = (cut.gradients.at(name) - gradient).norm().item<double>();
          EXPECT_LE(error, 1e-12 * gradient.norm().item<double>())
              << variant.name << " " << name << " " << chunks;
        }
      }
    }
  }
}

TEST(LossChunks, NeverMaterializeAllLogits) {
  GPTConfig config = measured_config({.granularity = Granularity::layers});
  config.vocabulary = config.padded_vocabulary = 8192;
  const Footprint whole = footprint(config);
  config.loss_chunks = 8;
  const Footprint cut = footprint(config);
  constexpr int64_t logits = int64_t{128} * 4 * 8192 * 4;  // bytes
  EXPECT_GE(whole.saved - cut.saved, logits * 9 / 10);
  EXPECT_GE(whole.peak - cut.peak, logits / 2);
}

TEST(Recompute, LowersThePeakOnAGpu) {
  if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
  const at::Device device(at::kCUDA, 0);
  const auto peak = [&](const RecomputeConfig& recompute) {
    // Activations are many times the workspace of a GEMM.
    GPTConfig config = gpt2_config({.hidden = 512, .ffn_hidden = 2048, .heads = 8, .positions = 1024});
    config.layers = 6;
    config.attention_dropout = 0.1;
    config.recompute = recompute;
    const LossAndGrads warm_up = run_step({.config = config, .dtype = at::kBFloat16, .device = device});
    c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(at::kCUDA);
    allocator->resetPeakStats(0);
    const int64_t before = allocator->getDeviceStats(0).allocated_bytes[0].current;
    const LossAndGrads measured = run_step({.config = config, .dtype = at::kBFloat16, .device = device});
    EXPECT_EQ(measured.gradients.size(), warm_up.gradients.size());
    return allocator->getDeviceStats(0).allocated_bytes[0].peak - before;
  };
  const int64_t all = peak({});
  EXPECT_LE(peak(plans()[0].config), all);  // kernels do not store scores
  EXPECT_LT(peak(plans()[1].config), all);
  EXPECT_LT(peak(plans()[5].config), all);
}

TEST(Recompute, IsBitwiseEqualOnAGpu) {
  if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
  at::globalContext().setDeterministicAlgorithms(true, false);
  for (const TestVariant& variant : deep_variants()) {
    for (const Plan& plan : plans()) {
      TestStep step{.config = variant.config, .dtype = at::kBFloat16, .device = at::Device(at::kCUDA, 0)};
      const TestStep stored = step;
      step.config.recompute = plan.config;
      expect_same_bits(step, stored, variant.name + ", " + plan.name);
    }
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
}

}  // namespace
}  // namespace teratron
