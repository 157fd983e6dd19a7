// Hugging Face's granitemoehybrid: each of its layers is two here, a mixer of Mamba-2 or attention, and an
// MLP or experts with one that all tokens share.
#include <algorithm>
#include <cmath>

#include "teratron/models/mamba/hf_keys.h"

namespace teratron::mamba_hf {

using nlohmann::json;
using enum HfRule;
using namespace hf_rows;
using namespace gpt_hf_keys;

namespace {

constexpr std::string_view experts_key = "num_local_experts", types_key = "layer_types";

int64_t experts_of(HfConfig& config) {
  const json value = config.keys.value(experts_key, json(8));
  if (value.is_null() || value == 0) return 0;
  return config.get(experts_key, 8);
}

// The types of the layers, without key all of Mamba-2.
void read_granite_layers(std::string_view key, HfConfig& config) {
  const int64_t layers = config.get(key, nullptr);
  if (layers > most_layers) return config.unsupported(key);
  const json types = config.get(types_key, json(std::vector<std::string>(layers, "linear_attention")));
  if (std::ssize(types) != layers) return config.unsupported(types_key);
  const char second = experts_of(config) > 0 ? hybrid::experts : hybrid::mlp;
  std::string pattern;
  for (const json& type : types) {
    const bool attends = type == "full_attention" || type == "attention";
    if (!attends && type != "linear_attention" && type != "mamba") return config.unsupported(types_key);
    pattern += {attends ? hybrid::attention : hybrid::mamba, second};
  }
  set_pattern(config, pattern);
}

void write_granite_layers(std::string_view key, HfConfig& config) {
  const std::string pattern = pattern_of(config);
  const char second = pattern.size() > 1 ? pattern[1] : hybrid::mlp;
  bool fits = pattern.size() % 2 == 0 && (second == hybrid::mlp || second == hybrid::experts);
  json types = json::array();
  for (size_t i = 0; fits && i < pattern.size(); i += 2) {
    fits = pattern[i + 1] == second && (pattern[i] == hybrid::mamba || pattern[i] == hybrid::attention);
    types.push_back(pattern[i] == hybrid::attention ? "full_attention" : "linear_attention");
  }
  if (!fits)
    config.problem("{} = {} has not an MLP in every second layer, or experts", pattern_setting, pattern);
  config.keys.update({{std::string(key), types.size()}, {std::string(types_key), types}});
}

void read_widths(std::string_view key, HfConfig& config) {
  const int64_t of_expert = config.get(key, 11008), shared = config.get("shared_intermediate_size", 1024);
  config.settings[ffn] = shared;
  const int64_t experts = experts_of(config);
  if (experts == 0) return;
  config.settings.update({{"num_experts", experts},
                          {"moe_router_topk", config.get("num_experts_per_tok", 2)},
                          {std::string(expert_ffn), of_expert},
                          {std::string(shared_ffn), shared}});
}

void write_widths(std::string_view key, HfConfig& config) {
  const json& settings = config.settings;
  if (!has_experts(config)) {
    const json& width = settings.at(ffn);
    config.keys.update(
        {{std::string(key), width}, {"shared_intermediate_size", width}, {std::string(experts_key), 0}});
    return;
  }
  for (const auto& [setting, value] :
       std::initializer_list<std::pair<std::string_view, json>>{{"moe_router_score_function", "softmax"},
                                                                {"moe_router_pre_softmax", false},
                                                                {"moe_router_enable_expert_bias", false},
                                                                {"moe_router_topk_scaling_factor", json()},
                                                                {"moe_router_num_groups", json()},
                                                                {"moe_latent_size", json()},
                                                                {"moe_apply_probs_on_input", false},
                                                                {"moe_shared_expert_gate", false}}) {
    if (settings.at(setting) != value)
      config.problem("{} is {}, not {}", setting, settings.at(setting).dump(), value.dump());
  }
  if (settings.at(shared_ffn).is_null()) config.problem("there are no shared experts");
  config.keys.update({{std::string(key), settings.at(expert_ffn)},
                      {"shared_intermediate_size", settings.at(shared_ffn)},
                      {std::string(experts_key), settings.at("num_experts")},
                      {"num_experts_per_tok", settings.at("moe_router_topk")}});
}

// Positions are rotated only if the file says so, whatever else it has.
void read_positions(std::string_view key, HfConfig& config) {
  if (!config.has(key)) {
    config.settings["position_embedding_type"] = "none";
  } else if (config.get(key, "rope") == "rope") {
    read_rope(key, config);
  } else {
    config.unsupported(key);
  }
}

void write_positions(std::string_view key, HfConfig& config) {
  const bool none = config.settings.at("position_embedding_type") == "none";
  config.keys[key] = none ? json() : json("rope");
  if (!none) write_rope(key, config);
}

// In place of 1 / sqrt(head size), always.
void read_scale(std::string_view key, HfConfig& config) {
  config.settings["softmax_scale"] = config.get(key, 1.0);
}

void write_scale(std::string_view key, HfConfig& config) {
  const json& scale = config.settings.at("softmax_scale");
  const auto channels = static_cast<double>(std::max<int64_t>(config.size("kv_channels"), 1));
  config.keys[key] = scale.is_null() ? json(1.0 / std::sqrt(channels)) : scale;
}

void read_logits_divisor(std::string_view key, HfConfig& config) {
  const double divisor = config.get(key, 1.0);
  if (divisor == 0.0) return config.unsupported(key);
  config.settings["logits_multiplier"] = 1.0 / divisor;
}

void write_logits_divisor(std::string_view key, HfConfig& config) {
  const double factor = config.settings.at("logits_multiplier");
  if (factor == 0.0) return config.problem("logits_multiplier is 0");
  config.keys[key] = 1.0 / factor;
}

HfLayerKinds granite_kinds(HfConfig& config, int64_t layers) {
  const std::string pattern = pattern_of(config);
  if (std::ssize(pattern) != 2 * layers) config.problem("{} has not {} layers", pattern_setting, 2 * layers);
  HfLayerKinds kinds;
  for (size_t i = 0; i + 1 < pattern.size(); i += 2)
    kinds.push_back({pattern[i] == hybrid::attention ? "full_attention" : "linear_attention",
                     pattern[i + 1] == hybrid::experts ? "moe" : "mlp"});
  return kinds;
}

// clang-format off

const std::vector<HfKey> granite_keys = {
    {"num_hidden_layers", pattern_setting, {.read = read_granite_layers, .write = write_granite_layers}},
    {"intermediate_size", ffn, {.read = read_widths, .write = write_widths}},
    {"max_position_embeddings", positions, {.otherwise = 2048}},
    {"position_embedding_type", "position_embedding_type", {.read = read_positions, .write = write_positions}},
    {"mamba_expand", "", {.read = read_expand, .write = write_expand}},
    {"rms_norm_eps", "norm_epsilon", {.otherwise = 1e-6}},
    {"rms_norm_eps", "mamba_norm_epsilon", {.otherwise = 1e-6, .write = write_norm_epsilon}},
    attention_bias, setting_is("add_bias_linear", false),
    {"num_experts_per_tok", "moe_router_topk", {.read = [](std::string_view, HfConfig&) {},
                                                .write = [](std::string_view, HfConfig&) {}}},
    {"num_local_experts", "num_experts", {.read = [](std::string_view, HfConfig&) {},
                                          .write = [](std::string_view, HfConfig&) {}}},
    {"embedding_multiplier", "embedding_multiplier", {.otherwise = 1.0}},
    {"residual_multiplier", "residual_multiplier", {.otherwise = 1.0}},
    {"attention_multiplier", "softmax_scale", {.read = read_scale, .write = write_scale}},
    {"logits_scaling", "logits_multiplier", {.read = read_logits_divisor, .write = write_logits_divisor}}};

const HfTensorOptions granite_experts = {.in = "moe"}, granite_mlp = {.in = "mlp"};
const std::vector<HfTensorRow> granite_norm_rows = {
    {"norm.weight", same, {"input_layernorm.weight"}, {hidden}, {.in = "linear_attention"}},
    {"input_layernorm.weight", same, {"input_layernorm.weight"}, {hidden}, {.in = "full_attention"}}};
const std::vector<HfTensorRow> feed_forward_rows = {
    {"pre_mlp_layernorm.weight", same, {"post_attention_layernorm.weight"}, {hidden}},
    {"mlp.linear_fc1.weight", same, {"shared_mlp.input_linear.weight"}, {"2*ffn_hidden_size", hidden}, granite_mlp},
    {"mlp.linear_fc2.weight", same, {"shared_mlp.output_linear.weight"}, {hidden, ffn}, granite_mlp},
    {"mlp.router.weight", same, {"block_sparse_moe.router.layer.weight"}, {"num_experts", hidden}, granite_experts},
    {"mlp.experts.#.linear_fc1.weight", stacked, {"block_sparse_moe.input_linear.weight"},
     {"2*moe_ffn_hidden_size", hidden}, granite_experts},
    {"mlp.experts.#.linear_fc2.weight", stacked, {"block_sparse_moe.output_linear.weight"}, {hidden, expert_ffn},
     granite_experts},
    {"mlp.shared_experts.linear_fc1.weight", same, {"shared_mlp.input_linear.weight"},
     {"2*moe_shared_expert_intermediate_size", hidden}, granite_experts},
    {"mlp.shared_experts.linear_fc2.weight", same, {"shared_mlp.output_linear.weight"}, {hidden, shared_ffn},
     granite_experts}};

const json granite_defaults = {{"vocab_size", 32000}, {"hidden_size", 4096}, {"num_hidden_layers", 32},
                               {"num_experts_per_tok", 2}};
// clang-format on

}  // namespace

HfFamily granitemoehybrid() {
  std::vector<std::string_view> other_keys = {"layer_types",          "shared_intermediate_size",
                                              "mamba_chunk_size",     "output_router_logits",
                                              "router_aux_loss_coef", "init_method"};
  other_keys.insert(other_keys.end(), rope_keys.begin(), rope_keys.end());
  std::vector<HfTensorGroup> tensors = ends_of_model("norm.weight");
  tensors.insert(tensors.begin() + 1,
                 {{"decoder.layers.2*.", "model.layers.*.", granite_norm_rows, "num_layers/2"},
                  {"decoder.layers.2*.", "model.layers.*.", attention_rows(), "num_layers/2"},
                  {"decoder.layers.2*.mixer.", "model.layers.*.mamba.", mixer_rows(), "num_layers/2"},
                  {"decoder.layers.2*+1.", "model.layers.*.", feed_forward_rows, "num_layers/2"}});
  return {.model_type = "granitemoehybrid",
          .architecture = "GraniteMoeHybridForCausalLM",
          .prefix = "model.",
          .keys = all_keys(prefixed_keys(), granite_keys),
          .tensors = tensors,
          .defaults = granite_defaults,
          .aliases = {{"layers_block_type", "layer_types"}},
          .other_keys = other_keys,
          .buffers = {".rotary_emb.inv_freq"},
          .old_ends = {{"block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.gate_up_proj"},
                       {"block_sparse_moe.output_linear.weight", "block_sparse_moe.experts.down_proj"},
                       {"block_sparse_moe.router.layer.weight", "block_sparse_moe.router.weight"}},
          .layer_kinds = granite_kinds,
          .peft_task = "CAUSAL_LM"};
}

}  // namespace teratron::mamba_hf
