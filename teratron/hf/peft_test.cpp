// adapter_config.json: what leaves an adapter plain LoRA, and what does not.
#include "teratron/hf/peft.h"

#include <cmath>
#include <fstream>

#include <gtest/gtest.h>

#include "teratron/ckpt/safetensors.h"
#include "teratron/testing/checkpoint_world.h"
#include "teratron/testing/hf_models.h"

namespace teratron {
namespace {

using nlohmann::json;

// LoraConfig(r=2, target_modules=["o_proj"]).to_dict() of PEFT 0.21.2.
json pefts_defaults() {
  return json::parse(R"({
    "task_type": null, "peft_type": "LORA", "auto_mapping": null, "peft_version": "0.21.2",
    "base_model_name_or_path": null, "revision": null, "inference_mode": false, "r": 2,
    "target_modules": ["o_proj"], "exclude_modules": null, "lora_alpha": 8, "lora_dropout": 0.0,
    "fan_in_fan_out": false, "bias": "none", "use_rslora": false, "modules_to_save": null,
    "init_lora_weights": true, "layers_to_transform": null, "layers_pattern": null, "rank_pattern": {},
    "alpha_pattern": {}, "megatron_config": null, "megatron_core": "megatron.core",
    "trainable_token_indices": null, "loftq_config": {}, "eva_config": null, "corda_config": null,
    "lora_ga_config": null, "use_dora": false, "velora_config": null, "alora_invocation_tokens": null,
    "use_qalora": false, "qalora_group_size": 16, "monteclora_config": null, "layer_replication": null,
    "lora_bias": false, "target_parameters": null, "use_bdlora": null, "arrow_config": null,
    "kasa_config": null, "ensure_weight_tying": false})");
}

class Adapter {
 public:
  explicit Adapter(const json& config) {
    std::ofstream(folder_ / "adapter_config.json") << config.dump();
    const std::string module = "base_model.model.model.layers.0.self_attn.o_proj.lora_";
    SafetensorsWriter writer(
        folder_ / "adapter_model.safetensors",
        {{module + "A.weight", Dtype::f32, {2, 12}}, {module + "B.weight", Dtype::f32, {12, 2}}}, {});
    const std::vector<float> values(48, 0.5F);
    writer.write(values.data(), 48 * 4);
    writer.finish();
  }
  PeftConfig read() const { return read_peft_config(folder_.path()); }
  std::string error() const {
    return message_of<UserError>([&] {
      json one_layer = hf_llama();
      one_layer["num_hidden_layers"] = 1;
      read_peft(folder_.path(), read(), hf_tensors(parse_hf(one_layer), 99));
    });
  }

 private:
  TemporaryDirectory folder_;
};

std::string error_with(const json& patch) {
  json config = pefts_defaults();
  config.update(patch);
  return Adapter(config).error();
}

TEST(PeftConfigTest, ReadsPlainAdapters) {
  const PeftConfig plain = Adapter(pefts_defaults()).read();
  EXPECT_EQ(plain.rank, 2);
  EXPECT_EQ(plain.alpha, 8.0);
  EXPECT_EQ(plain.targets, std::vector<std::string>{"linear_proj"});
  for (const json& patch : std::vector<json>{{{"task_type", "CAUSAL_LM"}},
                                             {{"base_model_name_or_path", "x"}, {"revision", "main"}},
                                             {{"inference_mode", true}, {"lora_dropout", 0.1}},
                                             {{"init_lora_weights", false}},
                                             {{"init_lora_weights", "gaussian"}},
                                             {{"init_lora_weights", "eva"}, {"eva_config", {{"rho", 2.0}}}},
                                             {{"init_lora_weights", "orthogonal"}},
                                             {{"exclude_modules", {"lm_head"}}},
                                             {{"a_later_field", nullptr}, {"another", false}}})
    EXPECT_EQ(error_with(patch), "") << patch;
}

// Each changes the base model's weights, or what is computed with the adapter's.
TEST(PeftConfigTest, RefusesAllElseByName) {
  for (const json& patch : std::vector<json>{{{"init_lora_weights", "pissa"}},
                                             {{"init_lora_weights", "pissa_niter_4"}},
                                             {{"init_lora_weights", "olora"}},
                                             {{"init_lora_weights", "loftq"}},
                                             {{"init_lora_weights", "corda"}},
                                             {{"init_lora_weights", "lora_ga"}},
                                             {{"init_lora_weights", "of_next_year"}},
                                             {{"loftq_config", {{"loftq_bits", 4}}}},
                                             {{"alora_invocation_tokens", {1, 2}}},
                                             {{"use_qalora", true}},
                                             {{"arrow_config", {{"top_k", 2}}}},
                                             {{"target_parameters", {"mlp.experts.gate_up_proj"}}},
                                             {{"use_dora", true}},
                                             {{"lora_bias", true}},
                                             {{"bias", "lora_only"}},
                                             {{"modules_to_save", {"lm_head"}}},
                                             {{"rank_pattern", {{"o_proj", 4}}}},
                                             {{"alpha_pattern", {{"o_proj", 4}}}},
                                             {{"layer_replication", {{0, 2}}}},
                                             {{"layers_to_transform", {1}}},
                                             {{"layers_to_transform", 0}},
                                             {{"trainable_token_indices", {5}}},
                                             {{"megatron_config", {{"x", 1}}}},
                                             {{"corda_config", {{"corda_method", "kpm"}}}},
                                             {{"lora_ga_config", {{"x", 1}}}},
                                             {{"velora_config", {{"x", 1}}}},
                                             {{"monteclora_config", {{"x", 1}}}},
                                             {{"kasa_config", {{"x", 1}}}},
                                             {{"use_bdlora", {{"x", 1}}}},
                                             {{"ensure_weight_tying", true}},
                                             {{"a_field_of_next_year", "on"}}}) {
    const std::string name = patch.begin().key();
    EXPECT_NE(error_with(patch).find(name + " is "), std::string::npos) << patch << error_with(patch);
  }
}

TEST(PeftConfigTest, SizesAreTheFilesNotTheSettings) {
  EXPECT_NE(error_with({{"r", 4.7}}).find("r = 4.7 is not a rank"), std::string::npos);
  EXPECT_NE(error_with({{"r", -1}}).find("not a rank"), std::string::npos);
  EXPECT_NE(error_with({{"r", uint64_t{1} << 63}}).find("not a rank"), std::string::npos);
  EXPECT_NE(error_with({{"r", "8"}}).find("not a rank"), std::string::npos);
  EXPECT_NE(error_with({{"lora_alpha", "8"}}).find("not of its type"), std::string::npos);
  // Before memory for adapters of that rank is allocated.
  EXPECT_NE(error_with({{"r", int64_t{1} << 31}}).find("is F32 [2, 12], but the model has [2147483648, 12]"),
            std::string::npos);
  json without = pefts_defaults();
  without.erase("r");  // 8 is PEFT's default
  EXPECT_NE(Adapter(without).error().find("[8, 12]"), std::string::npos);
  without = pefts_defaults();
  without.erase("lora_alpha");
  EXPECT_EQ(Adapter(without).read().alpha, 8.0);
  json rslora = pefts_defaults();
  rslora["use_rslora"] = true;
  EXPECT_NEAR(Adapter(rslora).read().alpha, 8 * std::sqrt(2.0), 1e-12);
}

}  // namespace
}  // namespace teratron
