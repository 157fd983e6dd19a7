// Llama 4 of Hugging Face: chunks, layers without rotations, experts whose inputs are weighted.
#include <algorithm>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/models/gpt/hf_experts_keys.h"
#include "teratron/models/gpt/hf_layer_keys.h"

namespace teratron::gpt_hf_keys {

using enum HfRule;
using namespace hf_rows;
using nlohmann::json;

namespace {

constexpr std::string_view chunk_size = "attention_chunk_size",
                           temperature_scale = "attention_temperature_scale",
                           temperature_step = "attention_temperature_step";

// Chunks are in the layers with a rotation, which no_rope_layers says.
json chunk_types(HfConfig& config) {
  HfConfig rotations{.settings = config.settings};
  rotations.settings.emplace("no_rope_freq", nullptr);
  write_no_rope_layers("with", rotations);
  config.problems.insert(config.problems.end(), rotations.problems.begin(), rotations.problems.end());
  json types = json::array();
  for (const json& with : rotations.keys["with"])
    types.push_back(with == 1 ? "chunked_attention" : "full_attention");
  return types;
}
void read_chunk_types(std::string_view key, HfConfig& config) {
  const json types = chunk_types(config);
  if (config.has(key) && config.keys[key] != types) config.unsupported(key);
}
void write_chunk_types(std::string_view key, HfConfig& config) {
  config.keys[key] = chunk_types(config);
}

// Early files have a number for true.
void read_temperature(std::string_view key, HfConfig& config) {
  const json tuning = config.has(key) ? config.keys[key] : json(true);
  if (!tuning.is_boolean() && !tuning.is_number()) return config.unsupported(key);
  const bool tunes = tuning.is_boolean() ? tuning.get<bool>() : tuning != 0;
  config.settings[temperature_scale] = tunes ? config.get("attn_scale", 0.1) : json(0.0);
  config.settings[temperature_step] = config.get("floor_scale", 8192);
}
void write_temperature(std::string_view key, HfConfig& config) {
  const double factor = config.settings.at(temperature_scale);
  config.keys.update({{std::string(key), factor > 0.0},
                      {"attn_scale", factor},
                      {"floor_scale", config.settings.at(temperature_step)}});
}

// Experts and the shared one have the same width.
void read_widths(std::string_view key, HfConfig& config) {
  const json width = config.get(key, nullptr);
  config.settings.update({{std::string(expert_ffn), width}, {std::string(shared_ffn), width}});
}
void write_widths(std::string_view key, HfConfig& config) {
  refuse_unless(config, shared_ffn, config.settings.at(expert_ffn));
  config.keys[key] = config.settings.at(expert_ffn);
}

void read_moe_layers(std::string_view key, HfConfig& config) {
  const int64_t layers = config.size("num_layers"), every = config.get("interleave_moe_layer_step", 1);
  if (layers > most_layers) return config.unsupported("num_hidden_layers");
  std::vector<int64_t> pattern;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool has = config.has(key)
                         ? std::ranges::find(config.keys[key], json(layer)) != config.keys[key].end()
                         : (layer + 1) % every == 0;
    pattern.push_back(has ? 1 : 0);
  }
  set_expert_layers(pattern, config);
}
void write_moe_layers(std::string_view key, HfConfig& config) {
  json with = json::array();
  const std::vector<int64_t> pattern = expert_layers(config, config.size("num_layers"));
  for (size_t layer = 0; layer < pattern.size(); ++layer) {
    if (pattern[layer] != 0) with.push_back(layer);
  }
  config.keys[key] = with;
}

// Sigmoids of the chosen logits, as they are.
void read_router(std::string_view key, HfConfig& config) {
  const int64_t chosen = config.get(key, 1);
  config.settings.update({{"moe_router_topk", chosen},
                          {"moe_router_score_function", "sigmoid"},
                          {"moe_router_unnormalized", chosen > 1},
                          {"moe_apply_probs_on_input", true}});
}
void write_router(std::string_view key, HfConfig& config) {
  const int64_t chosen = config.size("moe_router_topk");
  refuse_unless(config, "moe_router_score_function", "sigmoid");
  refuse_unless(config, "moe_router_topk_scaling_factor", nullptr);
  refuse_unless(config, "moe_router_num_groups", nullptr);
  refuse_unless(config, "moe_router_enable_expert_bias", false);
  refuse_unless(config, "moe_apply_probs_on_input", true);
  if (chosen > 1) refuse_unless(config, "moe_router_unnormalized", true);
  config.keys[key] = chosen;
}

// clang-format off

const std::vector<HfKey> llama4_keys = {
    attention_bias, setting_is("add_bias_linear", false), no_qkv_bias, only_without("qk_layernorm"),
    {"", "window_size", no_windows}, {"head_dim", "kv_channels", {.otherwise = 128}},
    {"rms_norm_eps", "norm_epsilon", {.otherwise = 1e-5}}, setting_is("rotary_interleaved", true),
    {"no_rope_layers", "no_rope_freq", {.read = read_no_rope_layers, .write = write_no_rope_layers}},
    {"layer_types", "", {.read = read_chunk_types, .write = write_chunk_types}},
    {chunk_size, chunk_size, {.otherwise = 8192}}, {"use_qk_norm", "qk_l2_norm", {.otherwise = true}},
    {"attn_temperature_tuning", temperature_scale, {.read = read_temperature, .write = write_temperature}},
    {"intermediate_size_mlp", ffn, {.otherwise = 16384}},
    {"intermediate_size", expert_ffn, {.read = read_widths, .write = write_widths}},
    {"", shared_ffn, {.export_only = true}},
    {"num_local_experts", "num_experts", {.otherwise = 16}},
    {"moe_layers", "moe_layer_freq", {.read = read_moe_layers, .write = write_moe_layers}},
    {"num_experts_per_tok", "moe_router_topk", {.read = read_router, .write = write_router}},
    {"", "moe_router_unnormalized", {.export_only = true}}, {"", "moe_apply_probs_on_input", {.export_only = true}},
    only_without("moe_router_normalize_one"), only_without("moe_shared_expert_gate")};
const json llama4_defaults = {
    {"vocab_size", 202048}, {"hidden_size", 5120}, {"intermediate_size", 8192}, {"num_hidden_layers", 48},
    {"num_attention_heads", 40}, {"num_key_value_heads", 8}, {"max_position_embeddings", 131072},
    {"rope_theta", 5e5}};

const HfTensorOptions of_mlp = {.in = "mlp"}, of_experts = {.in = "experts"};
const std::vector<HfTensorRow> llama4_rows = {
    {"mlp.linear_fc1.weight", concat, {"feed_forward.gate_proj.weight", "feed_forward.up_proj.weight"}, {ffn, hidden}, of_mlp},
    {"mlp.linear_fc2.weight", same, {"feed_forward.down_proj.weight"}, {hidden, ffn}, of_mlp},
    {"mlp.router.weight", same, {"feed_forward.router.weight"}, {"num_experts", hidden}, of_experts},
    {"mlp.experts.#.linear_fc1.weight", transpose, {"feed_forward.experts.#.gate_up_proj"},
     {"2*moe_ffn_hidden_size", hidden}, of_experts},
    {"mlp.experts.#.linear_fc2.weight", transpose, {"feed_forward.experts.#.down_proj"}, {hidden, expert_ffn}, of_experts},
    {"mlp.shared_experts.linear_fc1.weight", concat,
     {"feed_forward.shared_expert.gate_proj.weight", "feed_forward.shared_expert.up_proj.weight"}, {shared_ffn, hidden},
     of_experts},
    {"mlp.shared_experts.linear_fc2.weight", same, {"feed_forward.shared_expert.down_proj.weight"}, {hidden, shared_ffn},
     of_experts}};
const std::vector<HfFusedExperts> llama4_fused = {
    {"feed_forward.experts.gate_up_proj", {"feed_forward.experts.#.gate_up_proj"}, true},
    {"feed_forward.experts.down_proj", {"feed_forward.experts.#.down_proj"}, true}};

// clang-format on

HfFamily llama4_text() {
  HfFamily family = llama_like("llama4_text", "Llama4ForCausalLM", llama4_keys, llama4_defaults);
  replace_rows(family, "mlp.", llama4_rows);
  family.layer_kinds = experts_kinds;
  family.fused_experts = llama4_fused;
  for (const char* const key :
       {"attn_scale", "floor_scale", "no_rope_layer_interval", "interleave_moe_layer_step",
        "router_aux_loss_coef", "output_router_logits", "for_llm_compressor"})
    family.other_keys.push_back(key);
  return family;
}

// The text model of a file with pictures.
HfFamily llama4() {
  HfFamily family = llama4_text();
  family.model_type = "llama4";
  family.architecture = "Llama4ForConditionalGeneration";
  family.prefix = "language_model.model.";
  family.object = "text_config";
  family.unread = {"vision_model.", "multi_modal_projector."};
  family.tensors[0].theirs = family.tensors[2].theirs = "language_model.model.";
  family.tensors[1].theirs = "language_model.model.layers.*.";
  family.tensors[3].theirs = "language_model.";
  return family;
}

}  // namespace

std::vector<HfFamily> llama4_families() {
  return {llama4_text(), llama4()};
}

}  // namespace teratron::gpt_hf_keys
