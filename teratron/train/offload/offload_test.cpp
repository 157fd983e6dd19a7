// Offloading of saved activations: losses and gradients are bitwise those without it.
#include <gtest/gtest.h>

#include "teratron/testing/bert_models.h"
#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"
#include "teratron/testing/t5_models.h"

namespace teratron {
namespace {

using Granularity = RecomputeConfig::Granularity;
using Method = RecomputeConfig::Method;

OffloadConfig all_tensors_of(int64_t layers) {
  return {.layers = layers, .min_bytes = 0};
}

std::vector<RecomputeConfig> recompute_configs() {
  return {{},
          {.granularity = Granularity::attention_core},
          {.granularity = Granularity::layers},
          {.granularity = Granularity::layers, .layers = 2},
          {.granularity = Granularity::layers, .method = Method::block}};
}

TEST(Offload, IsBitwiseEqual) {
  for (const TestVariant& variant : deep_variants()) {
    for (const RecomputeConfig& recompute : recompute_configs()) {
      TestStep step{.config = variant.config, .dtype = at::kFloat, .documents = true};
      step.config.recompute = recompute;
      const TestStep kept = step;
      for (const int64_t layers : {1, 3}) {
        step.config.offload = all_tensors_of(layers);
        expect_same_bits(step, kept, fmt::format("{}, {} layers", variant.name, layers));
      }
    }
  }
}

TEST(Offload, IsBitwiseEqualInFp8) {
  // FP8 needs multiples of 16.
  for (TestVariant& variant : family_variants({.hidden = 32, .ffn_hidden = 64, .positions = 16})) {
    TestStep step{.config = variant.config, .dtype = at::kBFloat16, .fp8 = Fp8Options{}};
    const TestStep kept = step;
    step.config.offload = all_tensors_of(1);
    expect_same_bits(step, kept, variant.name);
  }
}

void expect_same_bits(const Gradients& actual, const Gradients& expected) {
  EXPECT_EQ(actual.step.loss, expected.step.loss);
  EXPECT_EQ(actual.step.grad_norm, expected.step.grad_norm);
  ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
  for (const auto& [name, gradient] : expected.tensors)
    EXPECT_TRUE(at::equal(actual.tensors.at(name), gradient)) << name;
}

// Several micro-batches in flight, chunks, and communication in every layer.
const std::vector<Layout>& offload_layouts() {
  static const std::vector<Layout> all = {
      {.tp = 2},
      {.tp = 2, .microbatches = 2, .sequence_parallel = true},
      {.cp = 2},
      {.dp = 2, .microbatches = 2, .sharded = true},
      {.pp = 4, .microbatches = 8},
      {.pp = 2, .chunks = 2, .microbatches = 4},
      every_axis,
      {.tp = 2, .pp = 2, .cp = 2, .microbatches = 4, .sequence_parallel = true}};
  return all;
}

TEST(Offload, IsBitwiseEqualInEveryLayout) {
  for (TestVariant& variant : family_variants()) {
    variant.config.layers = 4;
    GPTConfig offloaded = variant.config;
    for (const Layout& layout : offload_layouts()) {
      SCOPED_TRACE(variant.name + ", " + to_string(layout));
      const Gradients expected = gradients_of(variant.config, layout, {}, at::kFloat);
      for (const int64_t layers : {1, 4}) {
        offloaded.offload = all_tensors_of(layers);
        expect_same_bits(gradients_of(offloaded, layout, {}, at::kFloat), expected);
      }
    }
  }
}

TEST(Offload, IsBitwiseEqualWithExperts) {
  GPTConfig config = llama_config();
  config.layers = 4;
  config.experts.layers = {1, 0, 1, 1};
  MoeOptions& moe = config.experts.options;
  moe.router.experts = moe.experts.experts = 8;
  moe.experts.ffn_hidden = 12;
  moe.router.aux_loss = 0.1;
  GPTConfig offloaded = config;
  offloaded.offload = all_tensors_of(3);
  for (const Layout& layout : {Layout{.microbatches = 2}, Layout{.dp = 2, .ep = 2}, Layout{.tp = 2}}) {
    SCOPED_TRACE(to_string(layout));
    expect_same_bits(gradients_of(offloaded, layout, {}, at::kFloat),
                     gradients_of(config, layout, {}, at::kFloat));
  }
}

TEST(Offload, IsBitwiseEqualInBertAndT5) {
  for (const Layout& layout : {Layout{}, Layout{.pp = 2, .microbatches = 4}}) {
    for (const BertVariant& variant : bert_variants()) {
      SCOPED_TRACE(variant.name + ", " + to_string(layout));
      BertConfig offloaded = variant.config;
      offloaded.offload = all_tensors_of(2);
      expect_same_bits(gradients_of(bert_model(offloaded), layout, at::kFloat),
                       gradients_of(bert_model(variant.config), layout, at::kFloat));
    }
    for (const T5Variant& variant : t5_variants()) {
      SCOPED_TRACE(variant.name + ", " + to_string(layout));
      T5Config offloaded = variant.config;
      offloaded.encoder.offload = offloaded.decoder.offload = all_tensors_of(1);
      expect_same_bits(gradients_of(t5_model(offloaded), layout, at::kFloat),
                       gradients_of(t5_model(variant.config), layout, at::kFloat));
    }
  }
}

}  // namespace
}  // namespace teratron
