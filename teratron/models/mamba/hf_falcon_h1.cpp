// Hugging Face's falcon_h1: each of its layers is two here, mixers of Mamba-2 and attention side by side, and
// an MLP. Its factors stay settings.
#include <algorithm>

#include "teratron/models/mamba/hf_keys.h"

namespace teratron::mamba_hf {

using nlohmann::json;
using enum HfRule;
using namespace hf_rows;
using namespace gpt_hf_keys;

namespace {

void read_falcon_layers(std::string_view key, HfConfig& config) {
  const int64_t layers = config.get(key, nullptr);
  if (layers > most_layers) return config.unsupported(key);
  std::string pattern;
  for (int64_t i = 0; i < layers; ++i) pattern += {hybrid::both, hybrid::mlp};
  set_pattern(config, pattern);
}

void write_falcon_layers(std::string_view key, HfConfig& config) {
  const std::string pattern = pattern_of(config);
  bool fits = pattern.size() % 2 == 0;
  for (size_t i = 0; fits && i < pattern.size(); i += 2)
    fits = pattern[i] == hybrid::both && pattern[i + 1] == hybrid::mlp;
  if (!fits) config.problem("{} = {} is not H- for each layer", pattern_setting, pattern);
  config.keys[key] = pattern.size() / 2;
}

void read_gate(std::string_view key, HfConfig& config) {
  const bool norm = config.get(key, false), first = config.get("mamba_norm_before_gate", true);
  config.settings["mamba_gate"] = !norm ? "alone" : first ? "after-norm" : "before-norm";
}

void write_gate(std::string_view key, HfConfig& config) {
  const std::string gate = config.settings.at("mamba_gate");
  config.keys.update(
      {{std::string(key), gate != "alone"}, {"mamba_norm_before_gate", gate != "before-norm"}});
}

// Both projections of the mixer have them, or none.
void read_projection_biases(std::string_view key, HfConfig& config) {
  const bool in = config.get(key, false), out = config.get("projectors_bias", false);
  if (in != out) config.problem("'{}' and 'projectors_bias' differ", key);
  config.settings["mamba_proj_bias"] = in;
}

void write_projection_biases(std::string_view key, HfConfig& config) {
  config.keys[key] = config.keys["projectors_bias"] = config.settings.at("mamba_proj_bias");
}

// `count` factors; without key ones.
std::vector<double> factors_of(std::string_view key, size_t count, HfConfig& config) {
  const json list = config.get(key, json(std::vector<double>(count, 1.0)));
  const auto is_number = [](const json& value) { return value.is_number(); };
  if (list.size() == count && std::ranges::all_of(list, is_number)) return list;
  config.unsupported(key);
  return std::vector<double>(count, 1.0);
}

void read_mlp_factors(std::string_view key, HfConfig& config) {
  const std::vector<double> factors = factors_of(key, 2, config);
  config.settings.update({{"mlp_gate_multiplier", factors[0]}, {"mlp_output_multiplier", factors[1]}});
}

void write_mlp_factors(std::string_view key, HfConfig& config) {
  config.keys[key] = {config.settings.at("mlp_gate_multiplier"), config.settings.at("mlp_output_multiplier")};
}

void read_ssm_factors(std::string_view key, HfConfig& config) {
  config.settings["mamba_multipliers"] = factors_of(key, 5, config);
}

void write_ssm_factors(std::string_view key, HfConfig& config) {
  const json& factors = config.settings.at("mamba_multipliers");
  config.keys[key] = factors.empty() ? json(std::vector<double>(5, 1.0)) : factors;
}

void write_inner(std::string_view key, HfConfig& config) {
  config.keys.update({{std::string(key), config.size(inner)}, {"mamba_expand", 2}});
}

HfLayerKinds falcon_kinds(HfConfig& config, int64_t layers) {
  if (std::ssize(pattern_of(config)) != 2 * layers)
    config.problem("{} has not {} layers", pattern_setting, 2 * layers);
  std::vector<std::string_view> kinds = {"linear_attention", "full_attention"};
  if (config.settings.value("mamba_gate", "") != "alone") kinds.emplace_back("gated_norm");
  return HfLayerKinds(static_cast<size_t>(layers), kinds);
}

HfKey factor(std::string_view key, std::string_view setting) {
  return {key, setting, {.otherwise = 1.0}};
}

// clang-format off

const std::vector<HfKey> falcon_keys = {
    {"intermediate_size", ffn, {.otherwise = 14336}},
    {"num_hidden_layers", pattern_setting, {.read = read_falcon_layers, .write = write_falcon_layers}},
    {"max_position_embeddings", positions, {.otherwise = 8192}},
    {"rope_parameters", "rotary_base", {.read = read_rope, .write = write_rope}},
    {"mamba_d_ssm", "", {.read = [](std::string_view, HfConfig&) {}, .write = write_inner}},
    {"mamba_proj_bias", "mamba_proj_bias", {.read = read_projection_biases, .write = write_projection_biases}},
    {"attention_bias", "add_bias_linear", {.read = read_biases, .write = write_biases}},
    {"", "add_attention_bias", {.export_only = true, .write = [](std::string_view, HfConfig&) {}}},
    {"mamba_rms_norm", "mamba_gate", {.read = read_gate, .write = write_gate}},
    factor("embedding_multiplier", "embedding_multiplier"), factor("lm_head_multiplier", "logits_multiplier"),
    factor("key_multiplier", "key_multiplier"), factor("attention_in_multiplier", "attention_input_multiplier"),
    factor("attention_out_multiplier", "attention_output_multiplier"),
    factor("ssm_in_multiplier", "mamba_input_multiplier"), factor("ssm_out_multiplier", "mamba_output_multiplier"),
    {"ssm_multipliers", "mamba_multipliers", {.read = read_ssm_factors, .write = write_ssm_factors}},
    {"mlp_multipliers", "mlp_gate_multiplier", {.read = read_mlp_factors, .write = write_mlp_factors}},
    {"", "mlp_output_multiplier", {.export_only = true, .write = [](std::string_view, HfConfig&) {}}}};

const std::vector<HfTensorRow> falcon_norm_rows = {{"norm.weight", same, {"input_layernorm.weight"}, {hidden}}};
const std::vector<HfTensorRow> falcon_mlp_rows = {
    {"pre_mlp_layernorm.weight", same, {"pre_ff_layernorm.weight"}, {hidden}},
    {"mlp.linear_fc1.weight", concat, {"feed_forward.gate_proj.weight", "feed_forward.up_proj.weight"}, {ffn, hidden},
     biased},
    {"mlp.linear_fc2.weight", same, {"feed_forward.down_proj.weight"}, {hidden, ffn}, biased}};

const json falcon_defaults = {{"vocab_size", 128000}, {"hidden_size", 4096}, {"num_hidden_layers", 32},
                              {"num_key_value_heads", 8}, {"mamba_d_ssm", 1024}};
// clang-format on

std::vector<HfTensorRow> gated_mixer_rows() {
  std::vector<HfTensorRow> rows = mixer_rows();
  for (HfTensorRow& row : rows) {
    if (row.name == "norm.weight") row.options.in = "gated_norm";
  }
  return rows;
}

}  // namespace

HfFamily falcon_h1() {
  std::vector<std::string_view> other_keys = {
      "mamba_expand", "mamba_norm_before_gate", "projectors_bias",  "mlp_bias", "mamba_chunk_size",
      "layer_types",  "num_logits_to_keep",     "layers_block_type"};
  other_keys.insert(other_keys.end(), rope_keys.begin(), rope_keys.end());
  std::vector<HfTensorGroup> tensors = ends_of_model("final_layernorm.weight");
  tensors.insert(
      tensors.begin() + 1,
      {{"decoder.layers.2*.", "model.layers.*.", falcon_norm_rows, "num_layers/2"},
       {"decoder.layers.2*.mamba_mixer.", "model.layers.*.mamba.", gated_mixer_rows(), "num_layers/2"},
       {"decoder.layers.2*.", "model.layers.*.", attention_rows(), "num_layers/2"},
       {"decoder.layers.2*+1.", "model.layers.*.", falcon_mlp_rows, "num_layers/2"}});
  return {.model_type = "falcon_h1",
          .architecture = "FalconH1ForCausalLM",
          .prefix = "model.",
          .keys = all_keys(prefixed_keys(), falcon_keys),
          .tensors = tensors,
          .defaults = falcon_defaults,
          .other_keys = other_keys,
          .buffers = {".rotary_emb.inv_freq", ".mamba.mup_vector"},
          .layer_kinds = falcon_kinds,
          .peft_task = "CAUSAL_LM"};
}

}  // namespace teratron::mamba_hf
