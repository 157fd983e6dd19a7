#include <cmath>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>

#include "teratron/base/json.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/hf/config.h"
#include "teratron/hf/convert.h"
#include "teratron/hf/float_convert.h"
#include "teratron/hf/name_map.h"
#include "teratron/hf/sharded_safetensors.h"
#include "teratron/testing/checkpoint_world.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
json llama() {
  return {{"model_type", "llama"},    {"hidden_size", 12},
          {"intermediate_size", 20},  {"num_hidden_layers", 2},
          {"num_attention_heads", 6}, {"num_key_value_heads", 2},
          {"vocab_size", 13},         {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},     {"rope_theta", 500000.0},
          {"hidden_act", "silu"},     {"tie_word_embeddings", false}};
}

json gpt2() {
  return {{"model_type", "gpt2"},
          {"n_embd", 8},
          {"n_layer", 2},
          {"n_head", 2},
          {"vocab_size", 11},
          {"n_positions", 16},
          {"activation_function", "gelu_new"}};
}

json changed(json value, const json& patch) {
  value.merge_patch(patch);
  return value;
}

HfModel parse(const json& value) {
  return parse_hf_config(value.dump(), "config.json");
}

std::vector<json> all_models() {
  return {llama(),
          gpt2(),
          changed(llama(), {{"model_type", "mistral"}, {"head_dim", 4}}),
          changed(llama(), {{"model_type", "qwen2"}, {"tie_word_embeddings", true}}),
          changed(llama(), {{"model_type", "qwen3"}, {"head_dim", 8}}),
          changed(llama(), {{"attention_bias", true}, {"mlp_bias", true}}),
          changed(llama(), {{"num_key_value_heads", 6}}),
          changed(llama(), {{"model_type", "mistral"}, {"sliding_window", 32}}),
          changed(llama(), {{"model_type", "qwen2"},
                            {"use_sliding_window", true},
                            {"sliding_window", 8},
                            {"max_window_layers", 1}}),
          changed(gpt2(), {{"activation_function", "gelu"}})};
}

// A folder as transformers writes it, with values that tell every element from every other.
void write_model(const fs::path& directory, const json& config, int64_t max_bytes,
                 const std::string& prefix = "?") {
  fs::create_directories(directory);
  std::ofstream(directory / "config.json") << config.dump();
  const HfModel model = parse(config);
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const HfTensor& tensor : hf_name_map(model, prefix == "?" ? model.family->prefix : prefix)) {
    for (const HfSource& source : tensor.sources) tensors.push_back({source.name, Dtype::f32, source.shape});
  }
  float next = 0;
  write_sharded_safetensors(directory, tensors, max_bytes, [&](size_t i) {
    std::vector<char> bytes(static_cast<size_t>(*checked_numel(tensors[i].shape)) * 4);
    for (size_t k = 0; k < bytes.size(); k += 4) (next += 1, std::memcpy(bytes.data() + k, &next, 4));
    return bytes;
  });
}

std::map<std::string, std::vector<char>> contents(const fs::path& directory) {
  const ShardedSafetensors files(directory);
  std::map<std::string, std::vector<char>> all;
  for (const auto& [name, entry] : files.tensors()) all[name] = files.read(name);
  return all;
}

std::vector<float> read_floats(const fs::path& checkpoint, const std::string& name,
                               std::vector<int64_t> shape) {
  std::vector<float> values(static_cast<size_t>(*checked_numel(shape)));
  CheckpointReader(checkpoint)
      .read({.name = name, .shard = Shard::replicated(std::move(shape)), .data = values.data()});
  return values;
}

TEST(HfConfigTest, SettingsOfLlama) {
  const json settings =
      parse(changed(llama(), {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 32.0}}}})).settings;
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
  json config = llama();
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_theta", 1e6}, {"rope_type", "default"}};
  EXPECT_EQ(parse(config).settings["rotary_base"], 1000000);
  config.update({{"rope_theta", 5e5}, {"rope_parameters", {{"rope_theta", nullptr}}}});
  EXPECT_EQ(parse(config).settings["rotary_base"], 500000);
}

TEST(HfConfigTest, ListsEverythingUnsupported) {
  const auto error_of = [](const json& config) { return message_of<UserError>([&] { parse(config); }); };
  const std::string several = error_of(changed(
      llama(),
      {{"hidden_act", "gelu"}, {"num_key_value_heads", 4}, {"hidden_size", "x"}, {"attention_bias", true}}));
  for (const char* part :
       {"'hidden_act'", "not divisible", "'hidden_size' = \"x\" is not a size", "'attention_bias'"}) {
    EXPECT_NE(several.find(part), std::string::npos) << several;
  }
  EXPECT_NE(error_of({{"model_type", "mamba"}}).find("Supported are gpt2"), std::string::npos);
  EXPECT_NE(error_of(changed(llama(), {{"rope_scaling", {{"type", "yarn"}}}})).find("'yarn'"),
            std::string::npos);
  EXPECT_NE(error_of(changed(llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2.5}}}}))
                .find("'factor' = 2.5"),
            std::string::npos);
  EXPECT_NE(error_of(changed(llama(), {{"model_type", "qwen3"},
                                       {"use_sliding_window", true},
                                       {"sliding_window", 8},
                                       {"layer_types", {"full_attention", "chunked"}}}))
                .find("'layer_types'"),
            std::string::npos);
  EXPECT_NE(error_of(changed(gpt2(), {{"activation_function", "relu"}})).find("activation_function"),
            std::string::npos);
  EXPECT_NE(error_of(changed(gpt2(), {{"n_layer", nullptr}})).find("'n_layer' is missing"),
            std::string::npos);
  EXPECT_NE(error_of(changed(llama(), {{"partial_rotary_factor", 0.5}})).find("partial_rotary"),
            std::string::npos);
  EXPECT_NE(error_of(json::array()), "");
}

TEST(HfConfigTest, ExportsOnlyWhatAFamilyComputes) {
  CheckpointInfo info{.path = "p"};
  for (const HfTensor& tensor : hf_name_map(parse(llama()), ""))
    info.tensors[tensor.name] = {Dtype::f32, tensor.shape};
  const auto error_of = [&](const json& patch) {
    info.config = changed(parse(llama()).settings, patch).dump();
    return message_of<UserError>([&] { hf_model_of(info); });
  };
  EXPECT_EQ(error_of(json::object()), "");
  EXPECT_NE(error_of({{"squared_relu", true}, {"rotary_interleaved", true}}).find("rotary_interleaved"),
            std::string::npos);
  EXPECT_NE(error_of({{"rotary_percent", 0.5}}).find("rotary_percent"), std::string::npos);
  EXPECT_EQ(error_of({{"qk_layernorm", true}}), "") << "as Qwen3, which has no biases";
  for (const char* bias : {"add_bias_linear", "add_qkv_bias"})
    EXPECT_NE(error_of({{"qk_layernorm", true}, {bias, true}}).find("qk_layernorm"), std::string::npos);
  EXPECT_EQ(error_of({{"window_size", "7,0"}}), "") << "as Mistral";
  EXPECT_NE(error_of({{"window_size", "7,0"}, {"window_attn_skip_freq", "2"}}).find("window_attn_skip_freq"),
            std::string::npos);
  EXPECT_NE(error_of({{"window_size", "seven"}}).find("malformed"), std::string::npos);
  EXPECT_NE(error_of({{"swiglu", false}}).find("no Hugging Face model has"), std::string::npos);
  EXPECT_NE(error_of({{"swiglu", "yes"}}).find("swiglu"), std::string::npos);
  EXPECT_NE(error_of({{"num_attention_heads", 5}}).find("5 heads do not fit"), std::string::npos);
  info.tensors.erase("embedding.word_embeddings.weight");
  EXPECT_NE(error_of(json::object()).find("not a GPT model"), std::string::npos);
}

TEST(HfConfigTest, Windows) {
  const auto settings = [](const json& patch) {
    return parse(changed(changed(llama(), {{"sliding_window", 8}}), patch)).settings;
  };
  EXPECT_FALSE(settings(json::object()).contains("window_size")) << "Llama has none";
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
TEST(HfNameMap, ConservesEveryRow) {
  for (const json& config : all_models()) {
    for (const HfTensor& tensor : hf_name_map(parse(config), "")) {
      int64_t rows = 0;
      std::vector<std::vector<int>> uses;
      for (const HfSource& source : tensor.sources)
        uses.emplace_back(source.shape[source.transposed ? 1 : 0], 0);
      for (const RowSlice& slice : tensor.slices) {
        for (int64_t row = slice.row; row < slice.row + slice.rows; ++row) ++uses.at(slice.source).at(row);
        rows += slice.rows;
      }
      EXPECT_EQ(rows, tensor.shape[0]) << tensor.name;
      for (const auto& source : uses) {
        for (const int count : source) EXPECT_EQ(count, 1) << tensor.name;
      }
    }
  }
}

TEST(HfConvert, RoundTrip) {
  for (const json& config : all_models()) {
    const TemporaryDirectory directory;
    write_model(directory / "in", config, 1000);
    EXPECT_TRUE(fs::exists(directory / "in" / "model.safetensors.index.json"));
    const ConversionReport in = import_hf({.source = directory / "in", .destination = directory / "ckpt"});
    verify_checkpoint(in.result);
    const ConversionReport out =
        export_hf({.source = in.result, .destination = directory / "out", .max_shard_bytes = 3000});
    EXPECT_EQ(contents(directory / "out"), contents(directory / "in")) << config["model_type"];
    EXPECT_EQ(in.elements, out.elements);
    const HfModel again = parse_hf_config(read_text(directory / "out" / "config.json", {}), "out");
    EXPECT_EQ(again.settings, parse(config).settings) << config["model_type"];
  }
}

TEST(HfConvert, OrdersQkvAndGateAsMegatron) {
  const TemporaryDirectory directory;
  write_model(directory / "in", llama(), 1 << 30);
  const ConversionReport report = import_hf({.source = directory / "in", .destination = directory / "ckpt"});
  const ShardedSafetensors files(directory / "in");
  const auto value = [&](const std::string& name, int64_t row) {
    float first = 0;
    std::memcpy(&first, files.read("model.layers.1." + name).data() + row * 12 * 4, 4);
    return first;
  };
  const auto qkv = read_floats(report.result, "decoder.layers.1.self_attention.linear_qkv.weight", {20, 12});
  // Group 1: its three query heads of two rows, then key and value.
  EXPECT_EQ(qkv[10 * 12], value("self_attn.q_proj.weight", 6));
  EXPECT_EQ(qkv[15 * 12], value("self_attn.q_proj.weight", 11));
  EXPECT_EQ(qkv[16 * 12], value("self_attn.k_proj.weight", 2));
  EXPECT_EQ(qkv[18 * 12], value("self_attn.v_proj.weight", 2));
  const auto fc1 = read_floats(report.result, "decoder.layers.1.mlp.linear_fc1.weight", {40, 12});
  EXPECT_EQ(fc1[19 * 12], value("mlp.gate_proj.weight", 19));
  EXPECT_EQ(fc1[20 * 12], value("mlp.up_proj.weight", 0));
}

TEST(HfConvert, TransposesGpt2) {
  const TemporaryDirectory directory;
  write_model(directory / "in", gpt2(), 1 << 30, "");  // files of the bare model have no prefix
  const ConversionReport report = import_hf({.source = directory / "in", .destination = directory / "ckpt"});
  std::vector<float> theirs(8 * 24);
  std::memcpy(theirs.data(), ShardedSafetensors(directory / "in").read("h.0.attn.c_attn.weight").data(),
              theirs.size() * 4);
  const auto ours = read_floats(report.result, "decoder.layers.0.self_attention.linear_qkv.weight", {24, 8});
  // Head 1's first key row (two heads of width 4): our row 12 + 4, their column 8 + 4.
  for (int64_t column = 0; column < 8; ++column) EXPECT_EQ(ours[16 * 8 + column], theirs[column * 24 + 12]);
}

TEST(HfConvert, ConvertsTypesOnRequest) {
  const TemporaryDirectory directory;
  write_model(directory / "in", llama(), 1 << 30);
  const ConversionReport report =
      import_hf({.source = directory / "in", .destination = directory / "ckpt", .dtype = Dtype::bf16});
  EXPECT_EQ(open_checkpoint(report.result).tensors.at("output_layer.weight").dtype, Dtype::bf16);
  export_hf({.source = report.result, .destination = directory / "out", .dtype = Dtype::f32});
  EXPECT_EQ(ShardedSafetensors(directory / "out").tensors().at("lm_head.weight")->dtype, Dtype::f32);
}

TEST(HfConvert, ListsAllMissingAndSurplusTensors) {
  const TemporaryDirectory directory;
  write_model(directory / "in", llama(), 1 << 30);
  std::ofstream(directory / "in" / "config.json")
      << changed(llama(), {{"num_hidden_layers", 3}, {"vocab_size", 14}}).dump();
  std::string text = message_of<UserError>(
      [&] { import_hf({.source = directory / "in", .destination = directory / "ckpt"}); });
  EXPECT_NE(text.find("model.layers.2.self_attn.k_proj.weight\" is missing"), std::string::npos) << text;
  EXPECT_NE(text.find("has shape [13, 12], config.json requires [14, 12]"), std::string::npos) << text;
  std::ofstream(directory / "in" / "config.json") << changed(llama(), {{"num_hidden_layers", 1}}).dump();
  text = message_of<UserError>(
      [&] { import_hf({.source = directory / "in", .destination = directory / "ckpt"}); });
  EXPECT_NE(text.find("layers.1.mlp.up_proj.weight\" is in the files, but not in the model"),
            std::string::npos)
      << text;
  EXPECT_FALSE(fs::exists(directory / "ckpt"));
}

TEST(HfConvert, RefusesANonEmptyFolder) {
  const TemporaryDirectory directory;
  write_model(directory / "in", llama(), 1 << 30);
  const ConversionReport report = import_hf({.source = directory / "in", .destination = directory / "ckpt"});
  EXPECT_THROW(export_hf({.source = report.result, .destination = directory / "in"}), UserError);
  EXPECT_THROW(export_hf({.source = report.result,
                          .destination = directory / "out",
                          .tokenizer = {{"tokenizer.json", directory / "none"}}}),
               UserError);
  EXPECT_FALSE(fs::exists(directory / "out")) << "a failed export leaves nothing";
}

TEST(ShardedSafetensorsTest, fault_18_hostile_indices) {
  const TemporaryDirectory directory;
  write_model(directory / "m", llama(), 1000);
  const fs::path index = directory / "m" / "model.safetensors.index.json";
  const json good = json::parse(read_text(index, {}));
  const auto error_of = [&](const json& value) {
    write_text(index, value.dump(), ExitCode::data);
    return message_of<UserError>([&] { ShardedSafetensors files(directory / "m"); });
  };
  ASSERT_EQ(error_of(good), "");
  const std::string first = good["weight_map"]["lm_head.weight"];
  const auto with = [&](const json& file) {
    return changed(good, {{"weight_map", {{"lm_head.weight", file}}}});
  };
  for (const char* bad :
       {"../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", ".x.safetensors", "", "config.json"}) {
    EXPECT_NE(error_of(with(bad)).find("not a plain name"), std::string::npos) << bad;
  }
  EXPECT_NE(error_of(with(7)).find("not a plain name"), std::string::npos);
  EXPECT_NE(error_of(with("none.safetensors")).find("which is missing"), std::string::npos);
  EXPECT_NE(error_of(with(good["weight_map"]["model.embed_tokens.weight"])).find("is missing"),
            std::string::npos);
  json unlisted = good;
  unlisted["weight_map"].erase("model.norm.weight");
  EXPECT_NE(error_of(unlisted), "");
  fs::copy_file(directory / "m" / first, directory / "m" / "copy.safetensors");
  EXPECT_NE(error_of(with("copy.safetensors")).find("is also in"), std::string::npos);
  EXPECT_NE(error_of({{"weight_map", 1}}).find("weight_map"), std::string::npos);
  write_text(index, R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})", ExitCode::data);
  EXPECT_NE(message_of<UserError>([&] { ShardedSafetensors files(directory / "m"); }).find("twice"),
            std::string::npos);
}

TEST(ShardedSafetensorsTest, fault_19_pickles_are_refused) {
  const TemporaryDirectory directory;
  std::ofstream(directory / "config.json") << llama().dump();
  EXPECT_NE(message_of<UserError>([&] { ShardedSafetensors files(directory.path()); }).find("neither"),
            std::string::npos);
  std::ofstream(directory / "pytorch_model.bin") << "x";
  const auto error_of = [&](const fs::path& source) {
    return message_of<UserError>([&] { import_hf({.source = source, .destination = directory / "ckpt"}); });
  };
  EXPECT_NE(error_of(directory.path()).find("save_pretrained"), std::string::npos);
  EXPECT_NE(error_of(directory / "pytorch_model.bin").find("save_pretrained"), std::string::npos);
}

TEST(FloatConvert, RoundsToNearestEven) {
  const std::vector<float> values = {1.0F,
                                     1.00390625F,  // halfway between two bf16: to the even one
                                     1.01171875F,  // halfway, up
                                     -3.14159274F,
                                     65519.9F,  // largest that f16 does not round to infinity
                                     1e-8F,     // below half the smallest f16
                                     std::numeric_limits<float>::infinity(),
                                     std::numeric_limits<float>::quiet_NaN()};
  const auto count = static_cast<int64_t>(values.size());
  std::vector<uint16_t> narrow(values.size());
  std::vector<float> back(values.size());
  convert_floats(Dtype::f32, values.data(), Dtype::bf16, narrow.data(), count);
  EXPECT_EQ(std::vector<uint16_t>(narrow.begin(), narrow.begin() + 4),
            (std::vector<uint16_t>{0x3f80, 0x3f80, 0x3f82, 0xc049}));
  convert_floats(Dtype::bf16, narrow.data(), Dtype::f32, back.data(), count);
  EXPECT_TRUE(std::isinf(back[6]) && std::isnan(back[7]));
  convert_floats(Dtype::f32, values.data(), Dtype::f16, narrow.data(), count);
  convert_floats(Dtype::f16, narrow.data(), Dtype::f32, back.data(), count);
  EXPECT_EQ(back[4], 65504.0F);
  EXPECT_EQ(back[5], 0.0F);
  EXPECT_TRUE(std::isinf(back[6]) && std::isnan(back[7]));
  // Every bf16 and f16 survives the way through f32 and f64.
  for (const Dtype type : {Dtype::bf16, Dtype::f16}) {
    for (const Dtype wide : {Dtype::f32, Dtype::f64}) {
      for (uint32_t bits = 0; bits < 65536; ++bits) {
        const auto value = static_cast<uint16_t>(bits);
        double middle = 0;
        uint16_t result = 0;
        convert_floats(type, &value, wide, &middle, 1);
        convert_floats(wide, &middle, type, &result, 1);
        const bool nan = type == Dtype::bf16 ? (bits & 0x7fff) > 0x7f80 : (bits & 0x7fff) > 0x7c00;
        ASSERT_TRUE(nan || result == value) << bits;
      }
    }
  }
}

}  // namespace
}  // namespace teratron
