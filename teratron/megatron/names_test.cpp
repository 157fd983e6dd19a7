#include "teratron/megatron/names.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "teratron/megatron/export/core_tree.h"
#include "teratron/megatron/export/legacy_tree.h"

namespace teratron {
namespace {

constexpr const char *gpt = "gpt", *bert = "bert", *t5 = "t5";

const MegatronModel& model_of(std::string_view family) {
  return *std::ranges::find(megatron_models(), family, &MegatronModel::family);
}

TEST(MegatronNameTest, GivesEveryReleasesNamesOurs) {
  struct Row {
    const char *family, *theirs, *ours;
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
    EXPECT_EQ(megatron_name(row.theirs, model_of(row.family)).name, row.ours) << row.theirs;
  }
}

TEST(MegatronNameTest, NumbersLayersAnew) {
  const MegatronName name = megatron_name("language_model.encoder.layers.2.input_norm.weight", model_of(gpt));
  EXPECT_EQ(name.layer, 2);
  EXPECT_EQ(name.in_layer(7), "decoder.layers.7.input_layernorm.weight");
}

TEST(MegatronNameTest, RecognizesAFamilyByItsTensors) {
  const auto family_with = [](std::string_view name) {
    return recognized_model([name](std::string_view part) { return name.find(part) != name.npos; },
                            [](std::string_view) { return false; })
        .family;
  };
  EXPECT_EQ(family_with("decoder.layers.0.self_attention.linear_qkv.weight"), gpt);
  EXPECT_EQ(family_with("embedding.tokentype_embeddings.weight"), bert);
  EXPECT_EQ(family_with("language_model.decoder.layers.0.inter_attention.dense.weight"), t5);
}

TEST(MegatronNameTest, OurNamesHaveRowsInTheirFamilyAlone) {
  const auto known = [](const char* family, const char* name) {
    const MegatronName parsed = megatron_name(name, model_of(family));
    EXPECT_EQ(parsed.name, name);
    return has_row(model_of(family), parsed);
  };
  EXPECT_TRUE(known(gpt, "decoder.layers.3.mlp.experts.12.linear_fc1.weight"));
  EXPECT_TRUE(known(gpt, "decoder.final_layernorm.weight"));
  EXPECT_TRUE(known(t5, "decoder.layers.0.cross_attention.linear_kv.weight"));
  EXPECT_TRUE(known(bert, "binary_head.bias"));
  EXPECT_FALSE(known(gpt, "binary_head.bias"));
  EXPECT_FALSE(known(gpt, "decoder.layers.0.cross_attention.linear_kv.weight"));
  EXPECT_FALSE(known(bert, "encoder.layers.0.mlp.linear_fc3.weight"));
}

// What is written under a name of legacy models is read under it.
TEST(MegatronNameTest, RowsAreTheSameInBothDirections) {
  for (const MegatronModel& model : megatron_models()) {
    if (model.stacks[0].legacy.empty()) continue;  // Megatron-Core's alone
    std::map<std::string, TensorInfo> tensors;
    const auto add = [&](const std::string& prefix, const MegatronRow& row) {
      if (row.legacy.empty()) return;
      const std::string name = prefix + std::string(row.ours);
      tensors[name.ends_with('.') ? name + "weight" : name] = {};
    };
    for (const MegatronRow& row : model.embeddings) add("", row);
    for (const MegatronRow& row : model.heads) add("", row);
    for (const MegatronStack& stack : model.stacks) {
      for (const MegatronRow& row : stack.layer) add(std::string(stack.ours) + ".layers.0.", row);
      tensors[std::string(stack.ours) + ".final_layernorm.weight"] = {};
    }
    for (const MegatronNames names : {MegatronNames::legacy_core, MegatronNames::legacy_v2}) {
      const auto stages = megatron_stages(model, tensors, 1);
      size_t found = 0;
      for (const MegatronEntry& entry : legacy_entries({&model, names, stages, &tensors}, 0)) {
        if (entry.tensor.empty()) continue;
        std::string path;
        for (const std::string& key : entry.path) path += key + ".";
        EXPECT_EQ(megatron_name(path + entry.key, model).name, entry.tensor) << path + entry.key;
        ++found;
      }
      EXPECT_EQ(found, tensors.size()) << model.family;
    }
  }
}

// The weights of a GPT whose second layer has two experts.
std::map<std::string, TensorInfo> tensors_with_experts(const MegatronModel& gpt_model) {
  std::map<std::string, TensorInfo> tensors = {{"embedding.word_embeddings.weight", {}},
                                               {"decoder.final_layernorm.weight", {}},
                                               {"output_layer.weight", {}}};
  const auto add = [&](int layer, std::string name) {
    if (name.ends_with('.')) name += "weight";
    tensors[fmt::format("decoder.layers.{}.{}", layer, name)] = {};
  };
  for (const MegatronRow& row : gpt_model.stacks[0].layer) {
    const std::string ours(row.ours);
    const size_t number = ours.find('#');
    const bool mlp = ours.starts_with("mlp.linear");
    if (mlp || !ours.starts_with("mlp.")) add(0, ours);
    for (const char* expert : {"0", "1"})
      if (!mlp) add(1, number == ours.npos ? ours : std::string(ours).replace(number, 1, expert));
  }
  tensors["decoder.layers.1.mlp.router.weight"].shape = {2, 8};
  return tensors;
}

TEST(MegatronNameTest, WhatIsWrittenForMegatronCoreIsReadUnderOurNames) {
  const MegatronModel& model = model_of(gpt);
  const std::map<std::string, TensorInfo> tensors = tensors_with_experts(model);
  for (const MegatronNames names : {MegatronNames::core, MegatronNames::core_te}) {
    std::set<std::string> found, keys;
    for (const MegatronEntry& entry : core_entries({&model, names, {.layers = {2}}, &tensors}, 0, 0)) {
      EXPECT_TRUE(keys.insert(entry.key).second) << entry.key;
      if (entry.tensor.empty()) continue;
      EXPECT_EQ(megatron_name(entry.key, model).name, entry.tensor) << entry.key;
      found.insert(entry.tensor);
    }
    EXPECT_EQ(found.size(), tensors.size());
  }
}

TEST(MegatronNameTest, TransformerEnginesLayersHaveFusedNormsAndGroupedExperts) {
  const MegatronModel& model = model_of(gpt);
  const std::map<std::string, TensorInfo> tensors = tensors_with_experts(model);
  const auto has = [&](MegatronNames names, std::string_view key) {
    const auto entries = core_entries({&model, names, {.layers = {2}}, &tensors}, 0, 0);
    return std::ranges::find(entries, key, &MegatronEntry::key) != entries.end();
  };
  for (const char* key : {"decoder.layers.0.self_attention.linear_qkv.layer_norm_weight",
                          "decoder.layers.0.mlp.linear_fc1.layer_norm_weight",
                          "decoder.layers.1.mlp.experts.linear_fc2.weight1",
                          "decoder.layers.1.mlp.experts.linear_fc1._extra_state"}) {
    EXPECT_TRUE(has(MegatronNames::core_te, key)) << key;
    EXPECT_FALSE(has(MegatronNames::core, key)) << key;
  }
  EXPECT_TRUE(has(MegatronNames::core_te, "decoder.layers.1.pre_mlp_layernorm.weight"));
  EXPECT_TRUE(has(MegatronNames::core, "decoder.layers.1.mlp.experts.local_experts.1.linear_fc2.weight"));
}

TEST(MegatronNameDeathTest, RefusesTablesThatTheCoreTreeCannotWrite) {
  MegatronModel two = model_of(gpt);
  two.stacks.push_back(two.stacks[0]);
  const std::map<std::string, TensorInfo> tensors = tensors_with_experts(two);
  const auto write = [&](const MegatronModel& model) {
    core_entries({&model, MegatronNames::core, {.layers = {2}}, &tensors}, 0, 0);
  };
  EXPECT_DEATH(write(two), "models of gpt are not one stack and an output layer");
  MegatronModel first = model_of(gpt);
  first.stacks[0].layer[0].before_previous = true;
  EXPECT_DEATH(write(first), "no row comes before input_layernorm");
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
