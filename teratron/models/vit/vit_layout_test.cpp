// A vision transformer in every layout against one rank, and its images.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/models/vit/vit_family.h"
#include "teratron/testing/layouts.h"

namespace teratron {
namespace {

// Three patches and the class token.
VitConfig small_config(VitConfig::HeadKind head) {
  VitConfig config;
  config.layers = 4;
  config.hidden = 16;
  config.ffn_hidden = 24;
  config.heads = config.query_groups = 4;
  config.kv_channels = 4;
  config.mask = Mask::full;
  config.position = PositionEmbedding::none;
  config.norm = {.kind = NormKind::layer, .eps = 1e-5};
  config.hidden_dropout = config.attention_dropout = 0.1;
  config.height = 12;
  config.width = config.patch = 4;
  config.classes = 5;
  config.head = head;
  config.max_positions = config.rows();
  return config;
}

TestModel vit_model(const VitConfig& config) {
  const auto batch = [config](int64_t step, FlatRange samples) {
    at::Generator random = at::detail::createCPUGenerator(static_cast<uint64_t>(step) + 7);
    const at::Tensor pixels =
        at::randn({64, config.channels, config.height, config.width}, random, at::kDouble);
    const at::Tensor index_S1 = at::arange(config.rows(), at::kLong).unsqueeze(1);
    const at::Tensor ids = at::arange(samples.begin, samples.end, at::kLong);
    return MicroBatch{.tensors = {{"pixel_values", pixels.index_select(0, ids)},
                                  {"sequence_index", index_S1.expand({config.rows(), ids.size(0)})},
                                  {"labels", ids.remainder(config.classes).unsqueeze(1)}},
                      .sample_ids_B = ids};
  };
  return {vit_plan(config), batch};
}

TEST(Vit, MatchesOneRankInEveryLayout) {
  for (const auto head : {VitConfig::HeadKind::mlp, VitConfig::HeadKind::linear}) {
    const TestModel model = vit_model(small_config(head));
    const Gradients expected = gradients_of(model, {}, at::kDouble);
    for (const Layout& layout :
         {Layout{.tp = 2}, Layout{.tp = 2, .microbatches = 2, .sequence_parallel = true},
          Layout{.pp = 2, .microbatches = 4}, Layout{.dp = 4}, Layout{.dp = 2, .sharded = true},
          Layout{.tp = 2, .pp = 2, .dp = 2, .microbatches = 2, .sequence_parallel = true}}) {
      SCOPED_TRACE(to_string(layout));
      expect_same(gradients_of(model, layout, at::kDouble), expected, 1e-11);
    }
  }
}

TEST(Vit, EveryParameterHasAGradient) {
  const Gradients gradients =
      gradients_of(vit_model(small_config(VitConfig::HeadKind::mlp)), {}, at::kDouble);
  for (const auto& [name, gradient] : gradients.tensors)
    EXPECT_GT(gradient.norm().item<double>(), 0.0) << name;
}

}  // namespace
}  // namespace teratron
