#include "teratron/hf/weight_map.h"

#include <gtest/gtest.h>

#include "teratron/settings/arguments.h"
#include "teratron/testing/checkpoint_world.h"
#include "teratron/testing/hf_models.h"

namespace teratron {
namespace {

using nlohmann::json;

TEST(HfConfigTest, SettingsOfLlama) {
  const json settings = parse_hf(changed(hf_llama(), {{"rope_scaling",
                                                       {{"rope_type", "llama3"},
                                                        {"factor", 32.0},
                                                        {"low_freq_factor", 1.0},
                                                        {"high_freq_factor", 4.0}}}}))
                            .settings;
  const json expected = {{"num_layers", 2},
                         {"hidden_size", 12},
                         {"ffn_hidden_size", 20},
                         {"num_attention_heads", 6},
                         {"num_query_groups", 2},
                         {"group_query_attention", true},
                         {"kv_channels", 2},
                         {"rotary_base", 500000},
                         {"normalization", "RMSNorm"},
                         {"swiglu", true},
                         {"untie_embeddings_and_output_weights", true},
                         {"add_bias_linear", false},
                         {"add_qkv_bias", false},
                         {"position_embedding_type", "rope"},
                         {"use_rope_scaling", true},
                         {"rope_scaling_factor", 32.0}};
  for (const auto& [name, value] : expected.items()) EXPECT_EQ(settings[name], value) << name;
}

TEST(HfConfigTest, NewRopeParametersMeanTheSame) {
  json config = hf_llama();
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_theta", 1e6}, {"rope_type", "default"}};
  EXPECT_EQ(parse_hf(config).settings["rotary_base"], 1000000);
  config.update({{"rope_theta", 5e5}, {"rope_parameters", {{"rope_theta", nullptr}}}});
  EXPECT_EQ(parse_hf(config).settings["rotary_base"], 500000);
}

TEST(HfConfigTest, ListsEverythingUnsupported) {
  const auto error_of = [](const json& config) { return message_of<UserError>([&] { parse_hf(config); }); };
  const std::string several = error_of(changed(
      hf_llama(),
      {{"hidden_act", "gelu"}, {"num_key_value_heads", 4}, {"hidden_size", "x"}, {"mlp_bias", true}}));
  for (const char* part :
       {"'hidden_act'", "not divisible", "'hidden_size' = \"x\" is not a size", "'mlp_bias'"}) {
    EXPECT_NE(several.find(part), std::string::npos) << several;
  }
  EXPECT_NE(error_of({{"model_type", "mamba"}}).find("Supported are gpt2"), std::string::npos);
  EXPECT_NE(error_of(changed(hf_llama(), {{"rope_scaling", {{"type", "dynamic"}}}})).find("'dynamic'"),
            std::string::npos);
  EXPECT_NE(error_of(changed(hf_llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2.5}}}}))
                .find("'factor' = 2.5"),
            std::string::npos);
  EXPECT_NE(error_of(changed(hf_llama(), {{"model_type", "qwen3"},
                                          {"use_sliding_window", true},
                                          {"sliding_window", 8},
                                          {"layer_types", {"full_attention", "chunked"}}}))
                .find("'layer_types'"),
            std::string::npos);
  EXPECT_NE(error_of(changed(hf_gpt2(), {{"activation_function", "relu"}})).find("activation_function"),
            std::string::npos);
  json nothing = hf_gpt2();
  nothing["n_layer"] = nullptr;
  EXPECT_NE(error_of(nothing).find("'n_layer' is missing"), std::string::npos);
  EXPECT_NE(error_of(changed(hf_llama(), {{"partial_rotary_factor", 0.5}})).find("partial_rotary"),
            std::string::npos);
  EXPECT_NE(error_of(json::array()), "");
}

TEST(HfConfigTest, ExportsOnlyWhatAFamilyComputes) {
  CheckpointInfo info{.path = "p"};
  for (const HfTensor& tensor : hf_tensors(parse_hf(hf_llama()), 99))
    info.tensors[tensor.name] = {Dtype::f32, tensor.shape};
  const auto error_of = [&](const json& patch) {
    info.config = changed(parse_hf(hf_llama()).settings, patch).dump();
    return message_of<UserError>([&] { hf_model_of(info); });
  };
  EXPECT_EQ(error_of(json::object()), "");
  EXPECT_NE(error_of({{"squared_relu", true}, {"rotary_interleaved", true}}).find("rotary_interleaved"),
            std::string::npos);
  EXPECT_EQ(error_of({{"rotary_percent", 0.5}}), "") << "as Phi-3";
  EXPECT_EQ(error_of({{"qk_layernorm", true}}), "") << "as Qwen3, which has no biases";
  for (const char* bias : {"add_bias_linear", "add_qkv_bias"})
    EXPECT_NE(error_of({{"qk_layernorm", true}, {bias, true}}).find("qk_layernorm"), std::string::npos);
  EXPECT_EQ(error_of({{"window_size", "7,0"}}), "") << "as Mistral";
  EXPECT_NE(error_of({{"window_size", "7,0"}, {"window_attn_skip_freq", "2"}}).find("window_attn_skip_freq"),
            std::string::npos);
  EXPECT_NE(error_of({{"window_size", "seven"}}).find("malformed"), std::string::npos);
  EXPECT_NE(error_of({{"swiglu", false}}).find("no Hugging Face model has"), std::string::npos);
  EXPECT_NE(error_of({{"swiglu", "yes"}}).find("swiglu"), std::string::npos);
  EXPECT_NE(error_of({{"num_attention_heads", 5}}).find("num_query_groups is 2 for 5 heads"),
            std::string::npos);
  info.tensors.erase("embedding.word_embeddings.weight");
  EXPECT_NE(error_of(json::object()).find("embedding.word_embeddings.weight\" is missing"),
            std::string::npos);
}

TEST(HfConfigTest, ExportsOnlyAsTheFamilyOfTheCheckpoint) {
  CheckpointInfo info{.path = "p"};
  const HfModel model = parse_hf(hf_llama());
  EXPECT_EQ(model.family->family, "gpt");
  for (const HfTensor& tensor : hf_tensors(model, 99)) info.tensors[tensor.name] = {Dtype::f32, tensor.shape};
  info.config = changed(model.settings, {{"model_family", "gpt"}}).dump();
  EXPECT_EQ(hf_model_of(info).family->model_type, "llama");
  info.config = changed(model.settings, {{"model_family", "reverse"}}).dump();
  EXPECT_NE(message_of<UserError>([&] { hf_model_of(info); }).find("family 'reverse'"), std::string::npos);
}

TEST(HfConfigTest, ExportsWhatTheModelComputes) {
  const auto export_of = [](const json& config, const json& patch) {
    CheckpointInfo info{.path = "p"};
    const HfModel model = parse_hf(config);
    for (const HfTensor& tensor : hf_tensors(model, 99))
      info.tensors[tensor.name] = {Dtype::f32, tensor.shape};
    info.config = changed(model.settings, patch).dump();
    return hf_config(hf_model_of(info), Dtype::bf16);
  };
  EXPECT_EQ(export_of(hf_gpt2(), {{"bias_gelu_fusion", false}})["activation_function"], "gelu");
  EXPECT_EQ(export_of(hf_gpt2(), {{"bias_gelu_fusion", false}, {"openai_gelu", true}})["activation_function"],
            "gelu_new");
  EXPECT_EQ(export_of(hf_gpt2(), {{"group_query_attention", true}, {"num_query_groups", 2}})["n_head"], 2)
      << "as many groups as heads";
  EXPECT_THROW(export_of(hf_gpt2(), {{"group_query_attention", true}, {"num_query_groups", 1}}), UserError);
  const json both = {{"use_rope_scaling", true}, {"rotary_seq_len_interpolation_factor", 2}};
  EXPECT_THROW(export_of(hf_llama(), both), UserError) << "config.json has one kind of scaling";
  const json biases = changed(hf_llama(), {{"attention_bias", true}, {"mlp_bias", true}});
  EXPECT_EQ(export_of(biases, {{"add_qkv_bias", true}})["attention_bias"], true) << "it is among all biases";
}

TEST(HfConfigTest, Windows) {
  const auto settings = [](const json& patch) {
    return parse_hf(changed(changed(hf_llama(), {{"sliding_window", 8}}), patch)).settings;
  };
  for (const json& patch : {json::object(), json{{"use_sliding_window", true}, {"max_window_layers", 0}}})
    EXPECT_FALSE(settings(patch).contains("window_size")) << "transformers' Llama has none";
  EXPECT_EQ(settings({{"model_type", "mistral"}})["window_size"], "7,0");
  EXPECT_FALSE(settings({{"model_type", "mistral"}, {"sliding_window", 64}}).contains("window_size"))
      << "as long as the longest text";
  EXPECT_FALSE(settings({{"model_type", "qwen2"}}).contains("window_size")) << "not switched on";
  const json from_layer =
      settings({{"model_type", "qwen2"}, {"use_sliding_window", true}, {"max_window_layers", 1}});
  EXPECT_EQ(from_layer["window_attn_skip_freq"], "[0,1]");
  EXPECT_FALSE(settings({{"model_type", "qwen2"}, {"use_sliding_window", true}}).contains("window_size"))
      << "the first 28 layers have none";
  const json by_type = settings({{"model_type", "qwen3"},
                                 {"use_sliding_window", true},
                                 {"layer_types", {"sliding_attention", "full_attention"}}});
  EXPECT_EQ(by_type["window_attn_skip_freq"], "[1,0]");
}

// Every row of every source goes to exactly one place.
TEST(HfTensors, ConserveEveryRow) {
  for (const json& config : hf_models()) {
    for (const HfTensor& tensor : hf_tensors(parse_hf(config), 99)) {
      int64_t rows = 0;
      std::vector<std::vector<int>> uses;
      for (const HfSource& source : tensor.sources)
        uses.emplace_back(source.shape[source.transposed ? 1 : 0], 0);
      for (const RowSlice& slice : tensor.slices()) {
        for (int64_t row = slice.row; row < slice.row + slice.rows; ++row) ++uses.at(slice.source).at(row);
        EXPECT_EQ(slice.our_row, rows) << tensor.name;
        rows += slice.rows;
      }
      EXPECT_EQ(rows, tensor.shape[0]) << tensor.name;
      for (const auto& source : uses) {
        for (const int count : source) EXPECT_EQ(count, 1) << tensor.name;
      }
    }
  }
}

// Two stacks, tensors that only one side has, a bias alone, a fused source beside others.
TEST(HfTensors, OfSeveralStacks) {
  const HfFamily family = {
      .model_type = "two",
      .architecture = "Two",
      .prefix = "two.",
      .keys = {},
      .tensors = {{"embedding.",
                   "two.",
                   {{"w", HfRule::same, {"words"}, {"vocab_size", "hidden_size"}, {.copies = {"head"}}}}},
                  {"encoder.layers.*.",
                   "two.encoder.layer.*.",
                   {{"norm.weight", HfRule::same, {"ln.weight"}, {"hidden_size"}, {.bias = {"biases"}}},
                    {"qkv.weight",
                     HfRule::qkv_grouped,
                     {"q.weight", "k.weight", "v.weight"},
                     {"num_attention_heads*kv_channels", "hidden_size"}}},
                   "encoder_num_layers"},
                  {"decoder.layers.*.",
                   "two.decoder.*.",
                   {{"x", HfRule::transpose, {"y"}, {"4*hidden_size", "hidden_size"}}},
                   "decoder_num_layers"},
                  {"pooler.",
                   "two.pooler.",
                   {{"dense.weight", HfRule::same, {"dense.weight"}, {"hidden_size"}, {.when = {"pooled"}}}}},
                  {"lm_head.", "cls.", {{"bias", HfRule::same, {"bias"}, {"vocab_size"}}}}}};
  const json settings = {{"vocab_size", 5},         {"hidden_size", 4},         {"encoder_num_layers", 2},
                         {"decoder_num_layers", 1}, {"num_attention_heads", 2}, {"kv_channels", 2},
                         {"biases", true},          {"pooled", false}};
  const auto text_of = [](const std::vector<HfTensor>& tensors) {
    std::string text;
    for (const HfTensor& tensor : tensors) {
      text += tensor.name + json(tensor.shape).dump();
      for (const HfSource& source : tensor.sources) text += " " + source.name + json(source.shape).dump();
      for (const std::string& copy : tensor.copies) text += " = " + copy;
      text += "\n";
    }
    return text;
  };
  const HfModel model{&family, settings, {}, "two"};
  EXPECT_EQ(text_of(hf_tensors(model, 99)),
            "embedding.w[5,4] two.words[5,4] = head\n"
            "encoder.layers.0.norm.weight[4] two.encoder.layer.0.ln.weight[4]\n"
            "encoder.layers.0.norm.bias[4] two.encoder.layer.0.ln.bias[4]\n"
            "encoder.layers.0.qkv.weight[12,4] two.encoder.layer.0.q.weight[4,4]"
            " two.encoder.layer.0.k.weight[4,4] two.encoder.layer.0.v.weight[4,4]\n"
            "encoder.layers.1.norm.weight[4] two.encoder.layer.1.ln.weight[4]\n"
            "encoder.layers.1.norm.bias[4] two.encoder.layer.1.ln.bias[4]\n"
            "encoder.layers.1.qkv.weight[12,4] two.encoder.layer.1.q.weight[4,4]"
            " two.encoder.layer.1.k.weight[4,4] two.encoder.layer.1.v.weight[4,4]\n"
            "decoder.layers.0.x[16,4] two.decoder.0.y[4,16]\n"
            "lm_head.bias[5] cls.bias[5]\n");
  EXPECT_EQ(hf_tensors(model, 99, "two.").at(0).sources.at(0).name, "words");
  HfModel pooled = model;
  pooled.settings["pooled"] = true;
  EXPECT_EQ(hf_tensors(pooled, 99).size(), hf_tensors(model, 99).size() + 1);
  EXPECT_THROW(hf_tensors(model, 1), UserError) << "more layers than tensors";
}

// Layers of two kinds in turn, of which the last has experts, and settings in objects of config.json.
HfFamily hybrid() {
  return {
      .model_type = "hybrid",
      .architecture = "Hybrid",
      .prefix = "",
      .keys = {},
      .tensors =
          {{"decoder.layers.*.",
            "layers.*.",
            {{"norm.weight", HfRule::same, {"norm.weight"}, {"hidden_size"}},
             {"attention.weight",
              HfRule::same,
              {"attn.weight"},
              {"hidden_size", "hidden_size"},
              {.in = "attention"}},
             {"mamba.weight", HfRule::same, {"ssm.weight"}, {"hidden_size"}, {.in = "mamba"}},
             {"mlp.weight", HfRule::same, {"mlp.weight"}, {"hidden_size"}, {.in = "mlp"}},
             {"experts.#.weight", HfRule::same, {"experts.#.weight"}, {"hidden_size"}, {.in = "experts"}}},
            "num_layers"}},
      .layer_kinds = [](HfConfig& config, int64_t layers) {
        HfLayerKinds kinds;
        for (int64_t i = 0; i < layers; ++i)
          kinds.push_back({i % 2 == 0 ? "mamba" : "attention", i + 1 == layers ? "experts" : "mlp"});
        if (layers % 2 != 0) config.problem("{} layers are odd", layers);
        return kinds;
      }};
}

TEST(HfTensors, OfLayersOfSeveralKinds) {
  const HfFamily family = hybrid();
  const auto names_with = [&](int64_t layers) {
    const json settings = {{"num_layers", layers}, {"num_experts", 2}, {"hidden_size", 4}};
    std::vector<std::string> names;
    for (const HfTensor& tensor : hf_tensors({&family, settings, {}, "two"}, 99))
      names.push_back(tensor.name);
    return names;
  };
  EXPECT_EQ(names_with(2), (std::vector<std::string>{
                               "decoder.layers.0.norm.weight", "decoder.layers.0.mamba.weight",
                               "decoder.layers.0.mlp.weight", "decoder.layers.1.norm.weight",
                               "decoder.layers.1.attention.weight", "decoder.layers.1.experts.0.weight",
                               "decoder.layers.1.experts.1.weight"}));
  EXPECT_NE(message_of<UserError>([&] { names_with(3); }).find("3 layers are odd"), std::string::npos);
}

// Settings in objects of config.json, one of them through functions that see the keys of their object alone.
HfFamily nested() {
  const auto read = [](std::string_view key, HfConfig& config) {
    config.settings["num_attention_heads"] = config.get(key, nullptr);
  };
  const auto write = [](std::string_view key, HfConfig& config) {
    config.keys[key] = config.settings["num_attention_heads"];
    config.keys["beside"] = 1;
  };
  return {.model_type = "nested",
          .architecture = "Nested",
          .prefix = "",
          .keys = {{"text_config.hidden_size", "hidden_size"},
                   {"text_config.rope.theta", "rotary_base", {.otherwise = 10000}},
                   {"vision_config.heads", "num_attention_heads", {.read = read, .write = write}},
                   {"vision_config.kind", "", {.must_be = "vit"}}},
          .tensors = {},
          .family = "nested"};
}

TEST(HfConfigTest, KeysInsideObjects) {
  const std::vector<HfFamily> families = {nested()};
  const auto read = [&](const json& keys) {
    return parse_hf_config(keys.dump(), "config.json", families).settings;
  };
  const json config = {{"model_type", "nested"},
                       {"text_config", {{"hidden_size", 8}, {"rope", {{"theta", 500}}}}},
                       {"vision_config", {{"heads", 2}, {"kind", "vit"}}}};
  const json settings = read(config);
  EXPECT_EQ(settings, (json{{"hidden_size", 8}, {"rotary_base", 500}, {"num_attention_heads", 2}}));
  EXPECT_EQ(read(changed(config, {{"text_config", {{"rope", nullptr}}}}))["rotary_base"], 10000);
  json written = changed(config, {{"vision_config", {{"beside", 1}}}});
  written["vision_config"].erase("kind");
  written.erase("model_type");
  const json saved = changed(settings, {{"model_family", "nested"}});
  EXPECT_EQ(hf_model_of({.path = "p", .config = saved.dump()}, families).keys, written);
  const auto error_of = [&](const json& patch) {
    return message_of<UserError>([&] { read(changed(config, patch)); });
  };
  EXPECT_NE(error_of({{"text_config", nullptr}}).find("'text_config.hidden_size' is missing"),
            std::string::npos);
  EXPECT_NE(error_of({{"text_config", {{"rope", 3}}}}).find("'text_config.rope' is not an object"),
            std::string::npos);
  EXPECT_NE(error_of({{"vision_config", {{"heads", "x"}}}}).find("'vision_config.heads' = \"x\""),
            std::string::npos);
}

TEST(HfMap, SizesAreSumsProductsAndQuotients) {
  const json settings = {{"a", 30}, {"b", 7}, {"list", {4, 5, 6}}, {"none", nullptr}};
  EXPECT_EQ(hf_size(settings, "2*a+b"), 67);
  EXPECT_EQ(hf_size(settings, "a/b"), 0);
  EXPECT_EQ(hf_size(settings, "a:b*a:b+1"), 17);
  EXPECT_EQ(hf_size(settings, "b*list"), 21);
  EXPECT_EQ(hf_size(settings, "a:none"), 0);
}

TEST(HfMap, RowsNameSettings) {
  const json settings = json::parse(to_json(Arguments()));
  const auto check = [&](std::string_view product) {
    for (size_t end = 0; !product.empty(); product.remove_prefix(std::min(end + 1, product.size()))) {
      end = std::min(product.find_first_of("+*/:"), product.size());
      const std::string_view factor = product.substr(0, end);
      EXPECT_TRUE(settings.contains(factor) || factor == "4" || factor == "3" || factor == "2" ||
                  factor == "1")
          << factor;
    }
  };
  const auto check_keys = [&check](const std::vector<HfKey>& keys) {
    for (const HfKey& row : keys) {
      check(row.setting);
      check(row.options.derived);
    }
  };
  for (const HfFamily& family : hf_families()) {
    check_keys(family.keys);
    for (const HfPart& part : family.parts) check_keys(part.keys);
    for (const HfTensorGroup& group : family.tensors) {
      check(group.layers);
      EXPECT_EQ(group.layers.empty(), group.theirs.find('*') == group.theirs.npos) << group.theirs;
      for (const HfTensorRow& row : group.rows) {
        for (const std::string_view setting : row.options.when) check(setting);
        for (const std::string_view setting : row.options.unless) check(setting);
        for (const std::string_view size : row.shape) check(size);
        check(row.options.heads);
        for (const std::string_view setting : row.options.bias) check(setting);
      }
    }
  }
}

}  // namespace
}  // namespace teratron
