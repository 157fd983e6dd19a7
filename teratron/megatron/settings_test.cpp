#include "teratron/megatron/settings.h"

#include <gtest/gtest.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

using nlohmann::json;

// The shapes of a GPT without arguments.
MegatronSource published(int64_t layers, int64_t hidden) {
  MegatronSource source{.model = &megatron_models().front(), .where = "x.zip"};
  source.shapes["embedding.word_embeddings.weight"] = {50304, hidden};
  source.shapes["embedding.position_embeddings.weight"] = {1024, hidden};
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = fmt::format("decoder.layers.{}.", i);
    source.shapes[layer + "self_attention.linear_qkv.weight"] = {3 * hidden, hidden};
    source.shapes[layer + "self_attention.linear_proj.bias"] = {hidden};
    source.shapes[layer + "mlp.linear_fc1.weight"] = {4 * hidden, hidden};
    source.shapes[layer + "mlp.linear_fc2.weight"] = {hidden, 4 * hidden};
    source.shapes[layer + "input_layernorm.bias"] = {hidden};
  }
  return source;
}

TEST(MegatronSettingsTest, KnowsTheHeadsOfPublishedModels) {
  const json settings = megatron_settings(published(24, 1024), json::object());
  EXPECT_EQ(settings["num_attention_heads"], 16);
  EXPECT_EQ(settings["kv_channels"], 64);
  EXPECT_EQ(settings["max_position_embeddings"], 1024);
  EXPECT_EQ(megatron_settings(published(24, 1024), {{"num_attention_heads", 8}})["num_attention_heads"], 8);
}

TEST(MegatronSettingsTest, AsksForTheHeadsOfOthers) {
  EXPECT_THROW(megatron_settings(published(24, 2048), json::object()), UserError);
  EXPECT_THROW(megatron_settings(published(12, 1024), json::object()), UserError);
  EXPECT_EQ(megatron_settings(published(12, 1024), {{"num_attention_heads", 16}})["kv_channels"], 64);
}

}  // namespace
}  // namespace teratron
