// Keys that config.json leaves out, other names of keys, and keys that nobody knows. The expected defaults
// and names are those of transformers 5.23: tests/fixtures/models/hf_defaults.json has, of each configuration
// class, the fields that PreTrainedConfig lacks with their defaults (of the positions: what an instance has),
// and its attribute_map.
#include <gtest/gtest.h>

#include "teratron/testing/checkpoint_world.h"
#include "teratron/testing/fixtures.h"
#include "teratron/testing/hf_models.h"

namespace teratron {
namespace {

using nlohmann::json;

const json& published() {
  static const json all = testing::read_json(testing::fixture("models/hf_defaults.json"));
  return all;
}

// The settings, or why there are none.
std::string outcome(const json& config) {
  try {
    return parse_hf(config).settings.dump();
  } catch (const UserError& error) {
    return error.what();
  }
}

bool is_read(const json& config) {
  return outcome(config).starts_with('{');
}

json another(const json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number_integer()) return 2 * value.get<int64_t>();
  if (value.is_number()) return value == 0.0 ? 0.25 : 2 * value.get<double>();
  if (!value.is_object()) return value;
  json rope = value;  // of positions
  rope["rope_theta"] = 2 * rope["rope_theta"].get<double>();
  return rope;
}

// A model whose keys have other values than the defaults, where it can.
json unusual(const std::string& type, const json& defaults) {
  json config = defaults;
  config["model_type"] = type;
  for (const auto& [key, value] : defaults.items()) {
    const json changed =
        json(config).patch({{{"op", "add"}, {"path", "/" + key}, {"value", another(value)}}});
    if (is_read(changed)) config = changed;
  }
  return config;
}

TEST(HfDefaults, AreThoseOfTheConfigurationClass) {
  for (const auto& [type, known] : published().items()) {
    const json& defaults = known["defaults"];
    const json config = unusual(type, defaults);
    ASSERT_TRUE(is_read(config)) << type << outcome(config);
    int different = 0;
    for (const auto& [key, value] : defaults.items()) {
      json without = config, with = config;
      without.erase(key);
      with[key] = value;
      EXPECT_EQ(outcome(without), outcome(with)) << type << " without " << key;
      if (outcome(with) != outcome(config)) ++different;
    }
    EXPECT_GE(different, 8) << type << ": the test would see nothing";
    json all = defaults;
    all["model_type"] = type;
    EXPECT_EQ(outcome({{"model_type", type}}), outcome(all)) << type;
  }
}

TEST(HfDefaults, HaveTheNamesOfTheAttributeMap) {
  for (const auto& [type, known] : published().items()) {
    const json config = unusual(type, known["defaults"]);
    for (const auto& [name, key] : known["attribute_map"].items()) {
      json renamed = config;
      const std::string own = renamed.contains(key) ? key.get<std::string>() : name;
      const json value = renamed[own];
      renamed.erase(own);
      renamed[own == name ? key.get<std::string>() : name] = value;
      EXPECT_EQ(outcome(renamed), outcome(config)) << type << ": " << name;
    }
  }
  // BLOOM's first files.
  json bloom = published()["bloom"]["defaults"];
  bloom.update({{"model_type", "bloom"}, {"n_embed", 128}});
  EXPECT_EQ(parse_hf(bloom).settings["hidden_size"], 128);
}

TEST(HfDefaults, OfQwen2MoeAlternateWindows) {
  json config = published()["qwen2_moe"]["defaults"];
  config.update({{"model_type", "qwen2_moe"},
                 {"use_sliding_window", true},
                 {"num_hidden_layers", 6},
                 {"max_window_layers", 3}});
  // layer_types of Qwen2MoeConfig with these keys.
  EXPECT_EQ(parse_hf(config).settings["window_attn_skip_freq"], "[1,0,1,0,0,0]");
  EXPECT_EQ(parse_hf(config).settings["window_size"], "4095,0");
}

TEST(HfKnownKeys, OthersAreRefusedByName) {
  for (const auto& [type, known] : published().items()) {
    const json config = {{"model_type", type}};
    for (const auto& [key, value] : std::map<std::string, json>{{"attn_logit_softcapping", 50.0},
                                                                {"logits_scaling", 8},
                                                                {"use_attention_sinks", true},
                                                                {"is_causal", false},
                                                                {"layer_types", {"chunked_attention"}},
                                                                {"per_layer_config", {{"0", {{"x", 1}}}}},
                                                                {"quantization_config", {{"bits", 4}}}})
      EXPECT_NE(outcome(changed(config, {{key, value}})).find("'" + key + "'"), std::string::npos)
          << type << ": " << key;
    for (const json& nothing : {json(), json(false), json(0), json(""), json::array()}) {
      json with = config;
      with["attn_logit_softcapping"] = nothing;
      EXPECT_EQ(outcome(with), outcome(config)) << type;
    }
  }
}

TEST(HfKnownKeys, ThoseOfPositionsToo) {
  const auto said = [](const json& rope) { return outcome(changed(hf_llama(), {{"rope_scaling", rope}})); };
  EXPECT_NE(said({{"rope_type", "linear"}, {"factor", 2.0}, {"extrapolation_factor", 0.5}})
                .find("'rope_scaling.extrapolation_factor' = 0.5"),
            std::string::npos);
  EXPECT_NE(said({{"type", "default"}, {"mrope_section", {16, 24, 24}}}).find("mrope_section"),
            std::string::npos);
  EXPECT_NE(said({{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}})
                .find("'high_freq_factor' of rope type 'llama3' is missing"),
            std::string::npos);
  const json llama3 = {
      {"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};
  const char* const original = "rope_scaling_original_max_position_embeddings";
  json config = changed(hf_llama(), {{"rope_scaling", llama3}});
  EXPECT_EQ(parse_hf(config).settings[original], 64) << "max_position_embeddings";
  config["rope_scaling"]["original_max_position_embeddings"] = 16;
  EXPECT_EQ(parse_hf(config).settings[original], 16);
  config["original_max_position_embeddings"] = 32;
  EXPECT_EQ(parse_hf(config).settings[original], 32) << "transformers takes the outer one";
}

// What published files of these types hold beside the keys of their classes.
TEST(HfKnownKeys, PublishedFilesAreRead) {
  const std::map<std::string, json> extra = {
      {"gpt2",
       {{"n_ctx", 1024},
        {"task_specific_params", {{"text-generation", {{"do_sample", true}, {"max_length", 50}}}}},
        {"architectures", {"GPT2LMHeadModel"}},
        {"bos_token_id", 50256}}},
      {"llama",
       {{"_name_or_path", "x"},
        {"max_sequence_length", 2048},
        {"pretraining_tp", 1},
        {"transformers.js_config", {{"dtype", "q4"}}},
        {"rope_interleaved", false},
        {"is_llama_config", true},
        {"eos_token_id", {128001, 128008, 128009}},
        {"torch_dtype", "bfloat16"},
        {"use_cache", true},
        {"unsloth_version", "2025.1"},
        {"temperature", 0.6},
        {"_attn_implementation_autoset", true}}},
      {"qwen2", {{"use_mrope", false}, {"rope_scaling", nullptr}, {"max_window_layers", 21}}},
      {"qwen2_moe", {{"output_router_logits", false}, {"router_aux_loss_coef", 0.001}}},
      {"mixtral", {{"output_router_logits", false}, {"router_aux_loss_coef", 0.02}}},
      {"gemma", {{"hidden_activation", nullptr}, {"attention_dropout", 0.0}}},
      {"bloom",
       {{"attention_softmax_in_fp32", true},
        {"bias_dropout_fusion", true},
        {"masked_softmax_fusion", true},
        {"offset_alibi", 100},
        {"seq_length", 2048},
        {"skip_bias_add", true},
        {"skip_bias_add_qkv", false},
        {"n_inner", nullptr},
        {"unk_token_id", 0}}},
      {"gpt_neox", {{"rotary_emb_base", 10000}, {"rotary_pct", 0.25}, {"classifier_dropout", 0.1}}},
      {"opt", {{"activation_dropout", 0.0}, {"prefix", "</s>"}, {"init_std", 0.02}}},
      {"bert",
       {{"directionality", "bidi"},
        {"gradient_checkpointing", false},
        {"pooler_fc_size", 768},
        {"pooler_num_attention_heads", 12},
        {"pooler_num_fc_layers", 3},
        {"pooler_size_per_head", 128},
        {"pooler_type", "first_token_transform"},
        {"position_embedding_type", "absolute"}}},
      {"t5",
       {{"n_positions", 512},
        {"output_past", true},
        {"decoder_start_token_id", 0},
        {"dense_act_fn", "relu"},
        {"is_gated_act", false},
        {"initializer_factor", 1.0},
        {"task_specific_params", {{"summarization", {{"num_beams", 4}}}}}}},
      {"mt5", {{"tokenizer_class", "T5Tokenizer"}, {"tie_word_embeddings", false}}}};
  for (const auto& [type, keys] : extra) {
    json config = keys;
    config["model_type"] = type;
    EXPECT_TRUE(is_read(config)) << type << outcome(config);
  }
}

// torch has no such dropout, and transformers' norms and weights would be NaN.
TEST(HfValues, OutOfRangeAreRefusedByName) {
  const std::pair<const char*, json> values[] = {{"attention_dropout", 3.5},
                                                 {"attention_dropout", -1},
                                                 {"rms_norm_eps", -1e-6},
                                                 {"initializer_range", -0.02}};
  const std::map<std::string, std::string> settings = {{"attention_dropout", "attention_dropout"},
                                                       {"rms_norm_eps", "norm_epsilon"},
                                                       {"initializer_range", "init_method_std"}};
  for (const auto& [key, value] : values) {
    const std::string said = outcome(changed(hf_llama(), {{key, value}}));
    EXPECT_NE(said.find(settings.at(key) + " = "), std::string::npos) << said;
    EXPECT_NE(said.find("out of range"), std::string::npos) << said;
  }
}

TEST(HfExperts, MoreForATokenThanThereAre) {
  for (const char* type : {"mixtral", "qwen2_moe", "qwen3_moe"}) {
    const std::string experts = type == std::string("mixtral") ? "num_local_experts" : "num_experts";
    const json config = {{"model_type", type}, {experts, 4}, {"num_experts_per_tok", 5}};
    try {
      parse_hf(config);
      ADD_FAILURE() << type;
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::config);
      EXPECT_NE(
          std::string(error.what()).find("'num_experts_per_tok' = 5 is more than '" + experts + "' = 4"),
          std::string::npos)
          << error.what();
      EXPECT_NE(std::string(error.what()).find("config.json"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace teratron
