#include "teratron/megatron/names.h"

#include <gtest/gtest.h>

namespace teratron {
namespace {

using enum MegatronFamily;

TEST(MegatronNameTest, GivesEveryReleasesNamesOurs) {
  struct Row {
    MegatronFamily family;
    const char *theirs, *ours;
  };
  for (const Row& row : std::initializer_list<Row>{
           {gpt, "language_model.embedding.word_embeddings.weight", "embedding.word_embeddings.weight"},
           {gpt, "language_model.word_embeddings.weight", "embedding.word_embeddings.weight"},
           {gpt, "language_model.transformer.layers.3.attention.query_key_value.weight",
            "decoder.layers.3.self_attention.linear_qkv.weight"},
           {gpt, "language_model.encoder.layers.11.self_attention.dense.bias",
            "decoder.layers.11.self_attention.linear_proj.bias"},
           {bert, "language_model.encoder.layers.0.post_attention_layernorm.weight",
            "encoder.layers.0.pre_mlp_layernorm.weight"},
           {gpt, "language_model.encoder.layers.0.layernorm_mlp.fc1_weight",
            "decoder.layers.0.mlp.linear_fc1.weight"},
           {gpt, "language_model.encoder.layers.0.layernorm_mlp.layer_norm_bias",
            "decoder.layers.0.pre_mlp_layernorm.bias"},
           {gpt, "language_model.encoder.layers.0.self_attention.layernorm_qkv.layer_norm_weight",
            "decoder.layers.0.input_layernorm.weight"},
           {gpt, "language_model.encoder.layers.0.self_attention.layernorm_qkv.weight",
            "decoder.layers.0.self_attention.linear_qkv.weight"},
           {gpt, "language_model.encoder.final_norm.bias", "decoder.final_layernorm.bias"},
           {bert, "language_model.transformer.final_layernorm.bias", "encoder.final_layernorm.bias"},
           {bert, "language_model.pooler.dense.weight", "pooler.dense.weight"},
           {bert, "lm_head.bias", "output_layer.bias"},
           {bert, "lm_head.layernorm.weight", "lm_head.layer_norm.weight"},
           {bert, "lm_head.norm.weight", "lm_head.layer_norm.weight"},
           {bert, "encoder.layers.1.mlp.linear_fc1.layer_norm_weight",
            "encoder.layers.1.pre_mlp_layernorm.weight"},
           {gpt, "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight",
            "decoder.layers.1.input_layernorm.weight"},
           {gpt, "decoder.layers.2.mlp.experts.local_experts.13.linear_fc1.weight",
            "decoder.layers.2.mlp.experts.13.linear_fc1.weight"},
           {gpt, "decoder.layers.2.mlp.experts.linear_fc2.weight13",
            "decoder.layers.2.mlp.experts.13.linear_fc2.weight"},
           {gpt, "decoder.layers.2.mlp.experts.linear_fc1.bias0",
            "decoder.layers.2.mlp.experts.0.linear_fc1.bias"},
           {gpt, "decoder.layers.2.mlp.router.expert_bias", "decoder.layers.2.mlp.router.expert_bias"},
           {gpt, "decoder.layers.2.mlp.experts.linear_fc1.weight",
            "decoder.layers.2.mlp.experts.linear_fc1.weight"},
           {t5, "language_model.decoder.layers.0.post_attention_norm.weight",
            "decoder.layers.0.pre_cross_attn_layernorm.weight"},
           {t5, "language_model.decoder.layers.0.post_inter_attention_layernorm.bias",
            "decoder.layers.0.pre_mlp_layernorm.bias"},
           {t5, "language_model.decoder.layers.0.inter_attention.key_value.weight",
            "decoder.layers.0.cross_attention.linear_kv.weight"},
           {t5, "language_model.encoder.layers.0.post_attention_norm.weight",
            "encoder.layers.0.pre_mlp_layernorm.weight"}}) {
    EXPECT_EQ(megatron_name(row.theirs, row.family).name, row.ours) << row.theirs;
  }
}

TEST(MegatronNameTest, NumbersLayersAnew) {
  const MegatronName name = megatron_name("language_model.encoder.layers.2.input_norm.weight", gpt);
  EXPECT_EQ(name.layer, 2);
  EXPECT_EQ(name.in_layer(7), "decoder.layers.7.input_layernorm.weight");
}

TEST(MegatronNameTest, FindsTheNumberOfAnExpert) {
  const auto grouped = expert_number("decoder.layers.2.mlp.experts.linear_fc2.weight13");
  ASSERT_TRUE(grouped);
  EXPECT_EQ(grouped->number, 13);
  EXPECT_EQ(grouped->at, 46);
  EXPECT_EQ(grouped->length, 2);
  EXPECT_EQ(expert_number("layers.2.mlp.experts.local_experts.7.linear_fc1.bias")->number, 7);
  for (const char* other :
       {"layers.2.mlp.linear_fc1.weight", "layers.2.mlp.experts.linear_fc1.weight",
        "layers.2.mlp.experts.weight1", "layers.2.mlp.experts.local_experts..linear_fc1.weight",
        "layers.2.mlp.experts.local_experts.99999999999999999999.linear_fc1.weight"})
    EXPECT_FALSE(expert_number(other)) << other;
}

TEST(MegatronNameTest, SaysHowRanksShareATensor) {
  EXPECT_EQ(split_of("decoder.layers.0.self_attention.linear_qkv.bias"), MegatronSplit::rows);
  EXPECT_EQ(split_of("decoder.layers.0.mlp.linear_fc2.weight"), MegatronSplit::columns);
  EXPECT_EQ(split_of("decoder.layers.0.mlp.linear_fc2.bias"), MegatronSplit::none);
  EXPECT_EQ(split_of("lm_head.dense.weight"), MegatronSplit::none);
}

}  // namespace
}  // namespace teratron
