// Hugging Face's bamba: each of its layers is two here, a mixer of Mamba-2 or attention, and an MLP.
#include <algorithm>

#include "teratron/models/mamba/hf_keys.h"

namespace teratron::mamba_hf {

using nlohmann::json;
using enum HfRule;
using namespace hf_rows;
using namespace gpt_hf_keys;

namespace {

// Their layers with attention are listed by number.
void read_bamba_layers(std::string_view key, HfConfig& config) {
  const int64_t layers = config.get(key, nullptr);
  if (layers > most_layers) return config.unsupported(key);
  const json attention = config.get("attn_layer_indices", json::array());
  std::string pattern;
  for (int64_t i = 0; i < layers; ++i) {
    const bool attends = std::ranges::find(attention, json(i)) != attention.end();
    pattern += {attends ? hybrid::attention : hybrid::mamba, hybrid::mlp};
  }
  set_pattern(config, pattern);
}

void write_bamba_layers(std::string_view key, HfConfig& config) {
  const std::string pattern = pattern_of(config);
  json attention = json::array();
  bool fits = pattern.size() % 2 == 0;
  for (size_t i = 0; fits && i < pattern.size(); i += 2) {
    fits = pattern[i + 1] == hybrid::mlp && (pattern[i] == hybrid::mamba || pattern[i] == hybrid::attention);
    if (pattern[i] == hybrid::attention) attention.push_back(i / 2);
  }
  if (!fits) config.problem("{} = {} has not an MLP in every second layer", pattern_setting, pattern);
  config.keys.update({{std::string(key), pattern.size() / 2}, {"attn_layer_indices", attention}});
}

// Half of each head is rotated, whatever the file says.
void read_half_rope(std::string_view key, HfConfig& config) {
  config.keys["partial_rotary_factor"] = 0.5;
  if (config.has("rope_parameters")) config.keys["rope_parameters"]["partial_rotary_factor"] = 0.5;
  read_partial_rope(key, config);
}

void write_half_rope(std::string_view key, HfConfig& config) {
  if (config.settings.at("rotary_percent") != 0.5)
    config.problem("rotary_percent is {}, not 0.5", config.settings.at("rotary_percent").dump());
  write_partial_rope(key, config);
}

HfLayerKinds bamba_kinds(HfConfig& config, int64_t layers) {
  const std::string pattern = pattern_of(config);
  if (std::ssize(pattern) != 2 * layers) config.problem("{} has not {} layers", pattern_setting, 2 * layers);
  HfLayerKinds kinds;
  for (size_t i = 0; i < pattern.size(); i += 2)
    kinds.push_back({pattern[i] == hybrid::attention ? "full_attention" : "linear_attention"});
  return kinds;
}

// clang-format off

const std::vector<HfKey> bamba_keys = {
    {"intermediate_size", ffn, {.otherwise = 14336}},
    {"num_hidden_layers", pattern_setting, {.read = read_bamba_layers, .write = write_bamba_layers}},
    {"max_position_embeddings", positions, {.otherwise = 262144}},
    {"rope_parameters", "rotary_base", {.read = read_half_rope, .write = write_half_rope}},
    {"mamba_expand", "", {.read = read_expand, .write = write_expand}},
    key_is("attention_bias", false), key_is("mlp_bias", false), setting_is("add_bias_linear", false),
    // of all heads, so that import of the share of channels is not refused
    {"", "rotary_percent", {.export_only = true, .write = [](std::string_view, HfConfig&) {}}}};

const std::vector<HfTensorRow> bamba_norm_rows = {
    {"norm.weight", same, {"input_layernorm.weight"}, {hidden}, {.in = "linear_attention"}},
    {"input_layernorm.weight", same, {"input_layernorm.weight"}, {hidden}, {.in = "full_attention"}}};
const std::vector<HfTensorRow> bamba_mlp_rows = {
    {"pre_mlp_layernorm.weight", same, {"pre_ff_layernorm.weight"}, {hidden}},
    {"mlp.linear_fc1.weight", concat, {"feed_forward.gate_proj.weight", "feed_forward.up_proj.weight"}, {ffn, hidden}},
    {"mlp.linear_fc2.weight", same, {"feed_forward.down_proj.weight"}, {hidden, ffn}}};

const json bamba_defaults = {{"vocab_size", 128000}, {"hidden_size", 4096}, {"num_hidden_layers", 32},
                             {"num_key_value_heads", 8}};
// clang-format on

}  // namespace

HfFamily bamba() {
  std::vector<std::string_view> other_keys = {
      "attn_layer_indices", "layers_block_type",  "layer_types", "mamba_chunk_size",
      "num_logits_to_keep", "z_loss_coefficient", "rotary_pct",  "rotary_emb_base"};
  other_keys.insert(other_keys.end(), rope_keys.begin(), rope_keys.end());
  std::vector<HfTensorGroup> tensors = ends_of_model("final_layernorm.weight");
  tensors.insert(tensors.begin() + 1,
                 {{"decoder.layers.2*.", "model.layers.*.", bamba_norm_rows, "num_layers/2"},
                  {"decoder.layers.2*.", "model.layers.*.", attention_rows(), "num_layers/2"},
                  {"decoder.layers.2*.mixer.", "model.layers.*.mamba.", mixer_rows(), "num_layers/2"},
                  {"decoder.layers.2*+1.", "model.layers.*.", bamba_mlp_rows, "num_layers/2"}});
  return {.model_type = "bamba",
          .architecture = "BambaForCausalLM",
          .prefix = "model.",
          .keys = all_keys(prefixed_keys(), bamba_keys),
          .tensors = tensors,
          .defaults = bamba_defaults,
          .other_keys = other_keys,
          .buffers = {".rotary_emb.inv_freq"},
          .layer_kinds = bamba_kinds,
          .peft_task = "CAUSAL_LM"};
}

}  // namespace teratron::mamba_hf
