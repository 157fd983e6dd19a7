// GPT's model_types of Hugging Face with gated delta nets: Qwen3-Next, Qwen3.5, OLMo hybrid.
#include <algorithm>
#include <utility>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/models/gpt/hf_keys.h"

namespace teratron::gpt_hf_keys {

using enum HfRule;
using namespace hf_rows;
using nlohmann::json;

namespace {

constexpr std::string_view variant = "experimental_attention_variant", frequency = "linear_attention_freq";
constexpr std::string_view linear_type = "linear_attention", full_type = "full_attention";
constexpr int64_t most_linear_layers = 1 << 20;

// --- Which layers are linear ---

std::vector<int64_t> linear_layers(HfConfig& config, int64_t layers) {
  const json text = config.settings.value(frequency, json());
  const bool known = text.is_string() && layers <= most_linear_layers;
  auto linear = known ? parse_all_but_every(text.get<std::string>(), layers) : std::nullopt;
  if (!linear) config.problem("{} is {} for {} layers", frequency, text.dump(), layers);
  return linear.value_or(std::vector<int64_t>());
}

// A multiple of the heads of keys.
void read_value_heads(std::string_view key, HfConfig& config) {
  const int64_t heads = config.get(key, 32), keys = config.size("linear_num_key_heads");
  if (keys == 0 || heads % keys != 0)
    config.problem("'{}' = {} is not a multiple of 'linear_num_key_heads'", key, heads);
  config.settings["linear_num_value_heads"] = heads;
}

void write_value_heads(std::string_view key, HfConfig& config) {
  config.keys[key] = config.settings.at(key);
}

// A list, or older files' interval.
void read_layer_types(std::string_view key, HfConfig& config) {
  constexpr std::string_view interval = "full_attention_interval";
  const int64_t layers = config.size("num_layers");
  config.settings[variant] = "gdn";
  if (!config.has(key)) {
    config.settings[frequency] = std::to_string(config.get(interval, 4).get<int64_t>());
    return;
  }
  std::string list;
  const json types = config.get(key, json::array());
  if (std::ssize(types) != layers) return config.unsupported(key);
  for (const json& type : types) {
    if (type != linear_type && type != full_type) return config.unsupported(key);
    list += fmt::format("{}{}", list.empty() ? "" : ",", type == linear_type ? 1 : 0);
  }
  config.settings[frequency] = "[" + list + "]";
}

void write_layer_types(std::string_view key, HfConfig& config) {
  if (config.settings.at(variant) != "gdn") return config.problem("{} is not gdn", variant);
  json types = json::array();
  for (const int64_t linear : linear_layers(config, config.size("num_layers")))
    types.push_back(linear != 0 ? linear_type : full_type);
  config.keys[key] = types;
}

// --- OLMo hybrid ---

// Without list every fourth layer is full, and the last one of few.
void read_olmo_layer_types(std::string_view key, HfConfig& config) {
  const int64_t layers = config.size("num_layers");
  if (!config.has(key) && layers < 4 && layers > 0) {
    json types(static_cast<size_t>(layers), linear_type);
    types.back() = full_type;
    config.keys[key] = types;
  }
  read_layer_types(key, config);
}

// Without key as many as attention has.
void read_linear_heads(std::string_view key, HfConfig& config) {
  config.settings[key] = config.get(key, config.size(heads));
}
void write_same(std::string_view key, HfConfig& config) {
  config.keys[key] = config.settings.at(key);
}

void read_olmo_value_heads(std::string_view key, HfConfig& config) {
  if (!config.has(key)) config.keys[key] = config.size(heads);
  read_value_heads(key, config);
}

// Three quarters of the share of a head; values are twice as wide.
void read_key_size(std::string_view key, HfConfig& config) {
  const int64_t count = std::max<int64_t>(config.size("linear_num_key_heads"), 1);
  config.settings[key] = config.get(key, std::max<int64_t>(3 * config.size(hidden) / (4 * count), 1));
}
void read_value_size(std::string_view key, HfConfig& config) {
  config.settings[key] = config.get(key, 2 * config.size("linear_key_head_dim"));
}

// Published files have null in place of a base, or of all, for no rotation.
void read_olmo_rope(std::string_view key, HfConfig& config) {
  const bool given = config.keys.contains(key);
  const json rope = given ? config.keys[key] : json();
  const bool no_base = rope.is_object() && rope.contains("rope_theta") && rope["rope_theta"].is_null();
  if ((given && rope.is_null()) || no_base) {
    config.settings["position_embedding_type"] = "none";
  } else {
    read_rope(key, config);
  }
}

// transformers takes null for its defaults, and a base of null for none.
void write_olmo_rope(std::string_view key, HfConfig& config) {
  if (config.settings.at("position_embedding_type") != "none") return write_rope(key, config);
  config.keys[key] = {{"rope_type", "default"}, {"rope_theta", nullptr}};
}

// A smaller vocabulary does not have transformers' defaults.
void write_olmo_tokens(std::string_view, HfConfig& config) {
  if (config.size(vocab) <= 100277)
    config.keys.update({{"pad_token_id", nullptr}, {"eos_token_id", nullptr}});
}

HfLayerKinds layer_kinds(HfConfig& config, int64_t layers) {
  HfLayerKinds kinds;
  for (const int64_t linear : linear_layers(config, layers))
    kinds.push_back({linear != 0 ? linear_type : full_type});
  return kinds;
}

HfLayerKinds layer_kinds_with_experts(HfConfig& config, int64_t layers) {
  HfLayerKinds kinds = layer_kinds(config, layers);
  const HfLayerKinds experts = experts_kinds(config, layers);
  for (size_t layer = 0; layer < std::min(kinds.size(), experts.size()); ++layer)
    kinds[layer].insert(kinds[layer].end(), experts[layer].begin(), experts[layer].end());
  return kinds;
}

// clang-format off

const std::vector<HfKey> linear_keys = {
    attention_bias, setting_is("add_bias_linear", false), no_qkv_bias, {"", "window_size", no_windows},
    setting_is("qk_layernorm", true), setting_is("attention_output_gate", true),
    setting_is("apply_layernorm_1p", true), {"head_dim", "kv_channels", {.otherwise = 256}},
    {"rope_parameters", "rotary_base", {.read = read_rope_share, .write = write_rope_share}},
    {"", "rotary_percent", {.export_only = true, .write = [](std::string_view, HfConfig&) {}}},
    {"layer_types", frequency, {.read = read_layer_types, .write = write_layer_types}},
    {"", variant, {.export_only = true, .write = [](std::string_view, HfConfig&) {}}},
    {"linear_num_key_heads", "linear_num_key_heads", {.otherwise = 16}},
    {"linear_num_value_heads", "linear_num_value_heads", {.read = read_value_heads, .write = write_value_heads}},
    {"linear_key_head_dim", "linear_key_head_dim", {.otherwise = 128}},
    {"linear_value_head_dim", "linear_value_head_dim", {.otherwise = 128}},
    {"linear_conv_kernel_dim", "linear_conv_kernel_dim", {.otherwise = 4}}};

// The epsilon of the output norm is fixed there.
const std::vector<HfKey> olmo_keys = {
    attention_bias, setting_is("add_bias_linear", false), no_qkv_bias, {"", "window_size", no_windows},
    setting_is("qk_layernorm", true), setting_is("qk_layernorm_all_heads", true), setting_is("norm_position", "output"),
    {"rope_parameters", "rotary_base", {.read = read_olmo_rope, .write = write_olmo_rope}},
    {"layer_types", frequency, {.read = read_olmo_layer_types, .write = write_layer_types}},
    {"", variant, {.export_only = true, .write = [](std::string_view, HfConfig&) {}}},
    {"linear_num_key_heads", "linear_num_key_heads", {.read = read_linear_heads, .write = write_same}},
    {"linear_num_value_heads", "linear_num_value_heads", {.read = read_olmo_value_heads, .write = write_value_heads}},
    {"linear_key_head_dim", "linear_key_head_dim", {.read = read_key_size, .write = write_same}},
    {"linear_value_head_dim", "linear_value_head_dim", {.read = read_value_size, .write = write_same}},
    {"linear_conv_kernel_dim", "linear_conv_kernel_dim", {.otherwise = 4}},
    {"linear_allow_neg_eigval", "linear_allow_negative_eigenvalues", {.otherwise = true}},
    setting_is("linear_norm_epsilon", 1e-5),
    {"pad_token_id", "", {.export_only = true, .write = write_olmo_tokens}}};

const json olmo_defaults = {
    {"hidden_size", 3840}, {"num_hidden_layers", 32}, {"num_attention_heads", 30}, {"max_position_embeddings", 65536},
    {"vocab_size", 100352}, {"intermediate_size", 11008}};
const json linear_defaults = {
    {"hidden_size", 4096}, {"num_hidden_layers", 32}, {"num_attention_heads", 16}, {"num_key_value_heads", 4},
    {"max_position_embeddings", 32768}, {"vocab_size", 248320}, {"intermediate_size", 12288}};
const json qwen3_next_defaults = {
    {"vocab_size", 151936}, {"hidden_size", 2048}, {"intermediate_size", 5632}, {"num_hidden_layers", 48},
    {"num_attention_heads", 16}, {"num_key_value_heads", 2}, {"max_position_embeddings", 32768},
    {"moe_intermediate_size", 512}, {"shared_expert_intermediate_size", 512}, {"num_experts_per_tok", 10},
    {"num_experts", 512}, {"norm_topk_prob", true}};

constexpr std::string_view channels =
    "2*linear_num_key_heads*linear_key_head_dim+linear_num_value_heads*linear_value_head_dim";
constexpr std::string_view keys_rows = "linear_num_key_heads*linear_key_head_dim";
constexpr std::string_view values = "linear_num_value_heads*linear_value_head_dim", gates = "linear_num_value_heads";
const HfTensorOptions in_linear = {.in = linear_type};
const HfTensorRow by_heads = {"self_attention.in_proj.weight", delta_heads,
    {"linear_attn.in_proj_qkvz.weight", "linear_attn.in_proj_ba.weight"}, {channels, hidden}, in_linear};
const HfTensorRow by_columns = {"self_attention.in_proj.weight", concat,
    {"linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight", "linear_attn.in_proj_b.weight",
     "linear_attn.in_proj_a.weight"}, {channels, hidden}, {.in = linear_type, .rows = {channels, values, gates, gates}}};
const std::vector<HfTensorRow> linear_rows = {
    {"self_attention.conv1d.weight", same, {"linear_attn.conv1d.weight"}, {channels, "1", "linear_conv_kernel_dim"},
     in_linear},
    {"self_attention.dt_bias", same, {"linear_attn.dt_bias"}, {"linear_num_value_heads"}, in_linear},
    {"self_attention.A_log", same, {"linear_attn.A_log"}, {"linear_num_value_heads"}, in_linear},
    {"self_attention.out_norm.weight", same, {"linear_attn.norm.weight"}, {"linear_value_head_dim"}, in_linear},
    {"self_attention.out_proj.weight", same, {"linear_attn.out_proj.weight"}, {hidden, values}, in_linear}};

// Files that transformers wrote cut the convolution into equal parts.
const std::vector<HfTensorRow> olmo_linear_rows = {
    {"input_layernorm.weight", same, {"attention_layer_norm.weight"}, {hidden}, in_linear},
    {"pre_mlp_layernorm.weight", same, {"feedforward_layer_norm.weight"}, {hidden}, in_linear},
    {"self_attention.in_proj.weight", concat,
     {"linear_attn.q_proj.weight", "linear_attn.k_proj.weight", "linear_attn.v_proj.weight", "linear_attn.g_proj.weight",
      "linear_attn.b_proj.weight", "linear_attn.a_proj.weight"}, {keys_rows, hidden},
     {.in = linear_type, .rows = {keys_rows, keys_rows, values, values, gates, gates}}},
    {"self_attention.conv1d.weight", concat,
     {"linear_attn.q_conv1d.weight", "linear_attn.k_conv1d.weight", "linear_attn.v_conv1d.weight"},
     {keys_rows, "1", "linear_conv_kernel_dim"},
     {.in = linear_type, .rows = {keys_rows, keys_rows, values}, .any_cut = true}},
    {"self_attention.dt_bias", same, {"linear_attn.dt_bias"}, {gates}, in_linear},
    {"self_attention.A_log", same, {"linear_attn.A_log"}, {gates}, in_linear},
    {"self_attention.out_norm.weight", same, {"linear_attn.o_norm.weight"}, {"linear_value_head_dim"}, in_linear},
    {"self_attention.out_proj.weight", same, {"linear_attn.o_proj.weight"}, {hidden, values}, in_linear}};

// clang-format on

HfFamily with_delta_nets(HfFamily family, const HfTensorRow& in_proj) {
  family.layer_kinds = layer_kinds;
  family.other_keys.push_back("full_attention_interval");
  family.unread = {"mtp."};
  std::vector<HfTensorRow>& rows = family.tensors[1].rows;
  for (HfTensorRow& row : rows) {
    if (!row.name.starts_with("self_attention.")) continue;
    row.options.in = full_type;
    if (row.rule == qkv_grouped) row.rule = qkv_gated, row.shape[0] = "2*num_attention_heads*kv_channels";
  }
  rows.push_back(in_proj);
  rows.insert(rows.end(), linear_rows.begin(), linear_rows.end());
  return family;
}

HfFamily qwen3_next() {
  std::vector<HfKey> keys = linear_keys;
  for (const HfKey& key : qwen_next_experts_keys()) keys.push_back(key);
  HfFamily family = with_qwen_experts(
      with_delta_nets(llama_like("qwen3_next", "Qwen3NextForCausalLM", keys, qwen3_next_defaults), by_heads));
  family.layer_kinds = layer_kinds_with_experts;
  return family;
}

HfFamily qwen3_5_text() {
  return with_delta_nets(llama_like("qwen3_5_text", "Qwen3_5ForCausalLM", linear_keys, linear_defaults),
                         by_columns);
}

// The text model of a file with pictures, whose keys and tensors lie deeper.
HfFamily qwen3_5() {
  HfFamily family = qwen3_5_text();
  family.model_type = "qwen3_5";
  family.architecture = "Qwen3_5ForConditionalGeneration";
  family.prefix = "model.language_model.";
  family.object = "text_config";
  family.unread = {"mtp.", "model.visual."};
  family.unties = "lm_head.weight";
  for (HfTensorGroup& group : family.tensors) {
    for (const auto& [text, whole] : {std::pair("model.", "model.language_model."),
                                      std::pair("model.layers.*.", "model.language_model.layers.*.")}) {
      if (group.theirs == text) {
        group.theirs = whole;
        break;
      }
    }
  }
  return family;
}

// Layers with attention normalize outputs, as OLMo 2's, the others inputs.
HfFamily olmo_hybrid() {
  HfFamily family = llama_like("olmo_hybrid", "OlmoHybridForCausalLM", olmo_keys, olmo_defaults);
  family.layer_kinds = layer_kinds;
  for (const char* const key :
       {"linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor"})
    family.other_keys.push_back(key);
  family.old_ends = {{"attention_layer_norm.weight", "input_layernorm.weight"},
                     {"feedforward_layer_norm.weight", "post_attention_layernorm.weight"}};
  std::vector<HfTensorRow>& rows = family.tensors[1].rows;
  for (HfTensorRow& row : rows) {
    if (row.name.starts_with("mlp.")) continue;
    row.options.in = full_type;
    if (row.name == "input_layernorm.weight") row.sources = {"feedforward_layer_norm.weight"};
    if (row.name == "pre_mlp_layernorm.weight") row.sources = {"post_feedforward_layernorm.weight"};
    if (row.name == "self_attention.q_layernorm.weight") row.shape = {queries};
    if (row.name == "self_attention.k_layernorm.weight") row.rule = HfRule::keys, row.shape = {queries};
  }
  rows.insert(rows.begin() + 2, olmo_linear_rows.begin(), olmo_linear_rows.end());
  return family;
}

}  // namespace

std::vector<HfFamily> linear_families() {
  return {qwen3_next(), qwen3_5_text(), qwen3_5(), olmo_hybrid()};
}

}  // namespace teratron::gpt_hf_keys
