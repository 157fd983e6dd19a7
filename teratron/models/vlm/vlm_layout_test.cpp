// A model that reads images in every layout against one rank: losses and every gradient, also where
// micro-batches and data-parallel ranks have no images.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "teratron/models/vlm/vlm.h"
#include "teratron/models/vlm/vlm_family.h"
#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"

namespace teratron {
namespace {

constexpr int64_t sequence = 16, height = 5, width = 6, patch = 2, image_token = -200;

VisionConfig small_tower(VisionConfig::Kind kind) {
  return {.kind = kind,
          .blocks = {.layers = 3,
                     .hidden = 12,
                     .ffn_hidden = 16,
                     .heads = 2,
                     .query_groups = 2,
                     .kv_channels = 6,
                     .mask = Mask::full,
                     .position = PositionEmbedding::none,
                     .activation = Activation::quick_gelu},
          .height = height,
          .width = width,
          .patch = patch,
          .feature_layers = {2},
          .drops_first_row = kind == VisionConfig::Kind::clip};
}

VlmConfig small_config(const VisionConfig& vision) {
  VlmConfig config{.language = llama_config({.positions = sequence}),
                   .vision = vision,
                   .projector = {},
                   .image_token = image_token};
  config.language.layers = 4;
  config.language.scope = "language_model";
  config.projector = {.hidden = vision.features(),
                      .ffn_hidden = config.language.hidden,
                      .out = config.language.hidden,
                      .activation = Activation::gelu_erf,
                      .fc1_init = Init::normal(0.2),
                      .fc2_init = Init::normal(0.2)};
  return config;
}

struct VlmVariant {
  std::string name;
  VlmConfig config;
};

std::vector<VlmVariant> variants() {
  using Kind = VisionConfig::Kind;
  std::vector<VlmVariant> all;
  const auto add = [&all](const char* name, const VisionConfig& vision) -> VlmConfig& {
    return all.emplace_back(VlmVariant{name, small_config(vision)}).config;
  };
  add("CLIP", small_tower(Kind::clip));
  VisionConfig joined = small_tower(Kind::siglip);
  joined.feature_layers = {3, 0, 2};
  joined.has_head = true;
  add("SigLIP, joined layers, tied embeddings", joined).language.tied_embeddings = true;
  VisionConfig odd = small_tower(Kind::clip);
  odd.blocks.hidden = 9;
  odd.blocks.heads = odd.blocks.query_groups = 3;
  odd.blocks.kv_channels = 3;
  add("heads that ranks cannot divide", odd);
  VisionConfig recomputed = small_tower(Kind::siglip);
  recomputed.feature_layers = {3};
  recomputed.blocks.recompute = {.granularity = RecomputeConfig::Granularity::layers, .layers = 2};
  add("recomputation", recomputed).language.recompute = recomputed.blocks.recompute;
  VisionConfig frozen = small_tower(Kind::clip);
  frozen.frozen = true;
  add("frozen tower", frozen);
  add("frozen language model", small_tower(Kind::clip)).language.frozen = true;
  VlmConfig& first_stage = add("projector alone", frozen);
  first_stage.language.frozen = true;
  VisionConfig whole = small_tower(Kind::siglip);
  whole.replicated = true;
  VlmConfig& tower_alone = add("tower alone, on every rank", whole);
  tower_alone.projector_frozen = tower_alone.language.frozen = true;
  return all;
}

// The last four of the batch's samples have no image: all of the second data-parallel rank of two.
constexpr std::array<int64_t, test_samples> images_of_sample = {1, 2, 0, 1, 0, 0, 0, 0};

MicroBatch batch_of(const VlmConfig& config, int64_t step, FlatRange samples) {
  MicroBatch batch = test_batch({.sequence = sequence}, config.language.vocabulary, step, samples);
  at::Generator generator = at::detail::createCPUGenerator(200 + step);
  const VisionConfig& vision = config.vision;
  const int64_t rows = vision.rows();
  std::vector<at::Tensor> images;  // those of all samples
  for (int64_t i = 0; i < 3 * test_samples; ++i)
    images.push_back(at::randn({vision.channels, vision.height, vision.width}, generator, at::kDouble));
  at::Tensor tokens_SB = batch["tokens"].clone(), rows_SB = at::full_like(tokens_SB, -1);
  const at::Tensor images_B1 = at::zeros({samples.size(), 1}, at::kLong);
  std::vector<at::Tensor> chosen;
  for (int64_t sample = samples.begin; sample < samples.end; ++sample) {
    const int64_t own = sample - samples.begin, count = images_of_sample.at(static_cast<size_t>(sample));
    images_B1[own].fill_(count);
    for (int64_t image = 0; image < count; ++image) {
      chosen.push_back(images[static_cast<size_t>(3 * sample + image)]);
      // With text before the first and between them.
      const int64_t first = sample % 2 + image * (rows + 1);
      tokens_SB.narrow(0, first, rows).select(1, own).fill_(image_token);
      rows_SB.narrow(0, first, rows).select(1, own).copy_(at::arange(image * rows, (image + 1) * rows));
    }
  }
  batch.tensors.set("tokens", tokens_SB);
  batch.tensors.set("image_rows", rows_SB);
  batch.tensors.set("images", images_B1);
  if (!chosen.empty()) batch.tensors.set("pixel_values", at::stack(chosen));
  return batch;
}

TestModel model_of(const VlmConfig& config) {
  return {vlm_plan(config, {}),
          [config](int64_t step, FlatRange samples) { return batch_of(config, step, samples); }};
}

class VlmLayouts : public testing::TestWithParam<Layout> {};

TEST_P(VlmLayouts, MatchOneRank) {
  for (const VlmVariant& variant : variants()) {
    SCOPED_TRACE(variant.name + ", " + to_string(GetParam()));
    const TestModel model = model_of(variant.config);
    expect_same(gradients_of(model, GetParam(), at::kDouble), gradients_of(model, {}, at::kDouble), 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, VlmLayouts,
    testing::Values(Layout{.tp = 2}, Layout{.tp = 2, .microbatches = 2, .sequence_parallel = true},
                    Layout{.dp = 4}, Layout{.dp = 2, .microbatches = 4, .sharded = true},
                    Layout{.pp = 2, .microbatches = 4}, Layout{.pp = 2, .chunks = 2, .microbatches = 8},
                    Layout{.pp = 4, .stages = "E|tt|tt|L", .microbatches = 2}, Layout{.cp = 2},
                    Layout{.cp = 2, .dp = 2, .microbatches = 2, .sharded = true},
                    Layout{.tp = 2, .cp = 2, .sequence_parallel = true}, every_axis,
                    Layout{.tp = 2, .sequence_parallel = true, .late = true}));

// The gradient of a step without any image is zero for what only images read, and the others have theirs.
TEST(Vlm, TextAloneGivesZeros) {
  const VlmConfig config = small_config(small_tower(VisionConfig::Kind::clip));
  const TestModel model{vlm_plan(config, {}), [config](int64_t step, FlatRange samples) {
                          MicroBatch batch = batch_of(config, step, samples);
                          batch.tensors.set("tokens", batch["tokens"].clamp_min(0));
                          batch.tensors.set("image_rows", at::full_like(batch["image_rows"], -1));
                          batch.tensors.set("images", at::zeros_like(batch["images"]));
                          batch.tensors.set("pixel_values", {});
                          return batch;
                        }};
  for (const Layout& layout : {Layout{}, Layout{.dp = 2, .microbatches = 2, .sharded = true}}) {
    for (const auto& [name, gradient] : gradients_of(model, layout, at::kDouble).tensors)
      EXPECT_EQ(gradient.norm().item<double>() > 0.0, name.starts_with("language_model.")) << name;
  }
}

struct OneVlm {
  explicit OneVlm(const VlmConfig& config)
      : parameters({.dtype = at::kDouble, .seed = 3}),
        model(config, {parameters, {.layers = config.language.layers}, {}}) {}
  ParameterSet parameters;
  Vlm model;
};

TEST(Vlm, BlocksAfterTheFeaturesAreKeptAndNotTrained) {
  VisionConfig vision = small_tower(VisionConfig::Kind::siglip);
  vision.has_head = true;
  OneVlm one(small_config(vision));
  for (const Parameter& parameter : one.parameters.all()) {
    const std::string_view name = parameter.name;
    const bool unused = name.starts_with("vision_model.decoder.layers.2.") ||
                        name.starts_with("vision_model.ln_post.") || name.starts_with("vision_model.head.");
    EXPECT_EQ(parameter.options.trainable, !unused) << name;
  }
  EXPECT_NE(one.parameters.find("vision_model.head.attention.in_proj_weight"), nullptr);
  EXPECT_NE(one.parameters.find("vision_model.decoder.layers.2.mlp.linear_fc1.weight"), nullptr);
}

// Rows go to their places in order, through the samples.
TEST(Vlm, ImagesAreThoseOfTheirPlaces) {
  const VlmConfig config = small_config(small_tower(VisionConfig::Kind::clip));
  OneVlm one(config);
  const MicroBatch batch = batch_of(config, 1, {0, test_samples});
  const auto logits = [&](const MicroBatch& of) {
    return one.model.logits(one.model.forward({}, of, nullptr));
  };
  const at::Tensor expected_SBV = logits(batch);
  MicroBatch changed = batch;
  at::Tensor pixels = batch["pixel_values"].clone();
  pixels[3].add_(1.0);  // the only image of sample 3
  changed.tensors.set("pixel_values", pixels);
  const at::Tensor differs_B = (logits(changed) - expected_SBV).abs().amax({0, 2}).gt(0);
  EXPECT_TRUE(at::equal(differs_B, at::arange(test_samples).eq(3)));
  // Another token in the place of an image is never looked up.
  changed = batch;
  changed.tensors.set("tokens", batch["tokens"].masked_fill(batch["tokens"].eq(image_token), 5));
  EXPECT_TRUE(at::equal(logits(changed), expected_SBV));
}

TEST(Vlm, PixelShuffleJoinsSquares) {
  VisionConfig vision = small_tower(VisionConfig::Kind::siglip);
  vision.height = 4;
  vision.width = 8;
  vision.feature_layers = {0};
  const auto features = [](const VisionConfig& config) {
    ParameterSet parameters({.dtype = at::kDouble, .seed = 3});
    VisionModel tower(Scope(parameters, "vision_model"), config, {parameters, {}, {}});
    at::Generator generator = at::detail::createCPUGenerator(4);
    return tower.forward(at::randn({2, 3, config.height, config.width}, generator, at::kDouble), false);
  };
  const at::Tensor rows = features(vision).view({2, 2, 4, 12});  // image, line, column, channel
  vision.pixel_shuffle = true;
  const at::Tensor joined = features(vision).view({2, 1, 2, 48});
  for (int64_t column = 0; column < 2; ++column) {
    const at::Tensor square = rows.narrow(2, 2 * column, 2).reshape({2, 48});
    EXPECT_TRUE(at::equal(joined.select(1, 0).select(1, column), square));
  }
}

}  // namespace
}  // namespace teratron
