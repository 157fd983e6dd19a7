#include "teratron/models/mamba/hf_keys.h"

#include <algorithm>
#include <cmath>

#include "teratron/base/error.h"

namespace teratron::mamba_hf {

using enum HfRule;
using namespace hf_rows;
using nlohmann::json;

std::string pattern_of(const HfConfig& config) {
  const json pattern = config.settings.value(pattern_setting, json());
  return pattern.is_string() ? parse_hybrid_pattern(pattern.get<std::string>()).layers : "";
}

void set_pattern(HfConfig& config, const std::string& layers) {
  config.settings.update({{std::string(pattern_setting), layers}, {"num_layers", layers.size()}});
}

bool has_experts(const HfConfig& config) {
  return pattern_of(config).find(hybrid::experts) != std::string::npos;
}

static double bound_of(const json& value) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (value.is_object() && value.value("__float__", json()) == "Infinity") return infinity;
  return value.is_number() ? value.get<double>() : -1.0;
}

void read_time_step_limit(std::string_view key, HfConfig& config) {
  config.settings.update({{std::string(least), 0.0}, {std::string(most), nullptr}});
  if (!config.has(key)) return;
  const json& limit = config.keys[key];
  if (!limit.is_array() || limit.size() != 2) return config.unsupported(key);
  const double low = bound_of(limit[0]), high = bound_of(limit[1]);
  if (low < 0.0 || high < low) return config.unsupported(key);
  config.settings[least] = low;
  if (std::isfinite(high)) config.settings[most] = high;
}

void write_time_step_limit(std::string_view key, HfConfig& config) {
  const json& high = config.settings.at(most);
  const json infinity = {{"__float__", "Infinity"}};
  config.keys[key] = {config.settings.at(least), high.is_null() ? infinity : high};
}

void write_norm_epsilon(std::string_view key, HfConfig& config) {
  if (config.settings.at("mamba_norm_epsilon") != config.keys[key])
    config.problem("mamba_norm_epsilon is not norm_epsilon");
}

void read_expand(std::string_view key, HfConfig& config) {
  const double d = config.get(key, 2.0).get<double>() * static_cast<double>(config.size(hidden));
  if (d != static_cast<double>(config.size(inner)))
    config.problem("'{}' * 'hidden_size' is not 'num_heads' * 'head_dim'", key);
}

void write_expand(std::string_view key, HfConfig& config) {
  const int64_t d = config.size(inner), width = config.size(hidden);
  if (d % width != 0)
    return config.problem("{} heads of {} do not make a multiple of hidden_size = {}",
                          config.size("mamba_num_heads"), config.size("mamba_head_dim"), width);
  config.keys[key] = d / width;
}

// The channels of all heads.
static int64_t inner_size(HfConfig& config) {
  if (config.has("mamba_d_ssm")) return config.get("mamba_d_ssm", nullptr);
  return config.get("mamba_expand", 2).get<int64_t>() * config.size(hidden);
}

void read_head_size(std::string_view key, HfConfig& config) {
  const int64_t d = inner_size(config), heads = std::max<int64_t>(config.size("mamba_num_heads"), 1);
  const bool given = config.has(key) && config.keys[key] != "auto";
  config.settings["mamba_head_dim"] = given ? config.get(key, 64) : json(d / heads);
  if (config.size(inner) != d)
    config.problem("'{}' = {} of {} heads do not make {} channels", key,
                   config.settings["mamba_head_dim"].dump(), heads, d);
}

void write_head_size(std::string_view key, HfConfig& config) {
  config.keys[key] = config.settings.at("mamba_head_dim");
}

// clang-format off
std::vector<HfKey> prefixed_keys() {
  return {
      {"hidden_size", hidden}, {"vocab_size", vocab, embedded},
      {"num_attention_heads", heads, {.otherwise = 32}}, {"num_key_value_heads", "num_query_groups", groups},
      {"head_dim", "kv_channels", head_size},
      {"mamba_n_heads", "mamba_num_heads", {.otherwise = 128}},
      {"mamba_d_head", "", {.read = read_head_size, .write = write_head_size}},
      {"mamba_n_groups", "mamba_num_groups", {.otherwise = 1}},
      {"mamba_d_state", "mamba_state_dim", {.otherwise = 256}},
      {"mamba_d_conv", "mamba_conv_kernel", {.otherwise = 4}},
      {"mamba_conv_bias", "mamba_conv_bias", {.otherwise = true}},
      {"mamba_proj_bias", "mamba_proj_bias", {.otherwise = false}},
      {"time_step_limit", "", {.read = read_time_step_limit, .write = write_time_step_limit}},
      setting_is("normalization", "RMSNorm"), {"rms_norm_eps", "norm_epsilon", {.otherwise = 1e-5}},
      {"rms_norm_eps", "mamba_norm_epsilon", {.otherwise = 1e-5, .write = write_norm_epsilon}},
      {"hidden_act", "swiglu", {.otherwise = "silu", .values = {{"silu", true}}}},
      {"", "add_qkv_bias", {.otherwise = false, .write = write_qkv_bias}},
      {"attention_dropout", "attention_dropout", {.otherwise = 0.0}}, {"", "hidden_dropout", {.otherwise = 0.0}},
      {"", "window_size", no_windows}, {"tie_word_embeddings", untied, {.otherwise = false, .negate = true}}};
}

std::vector<HfTensorRow> attention_rows() {
  const std::string_view kind = "full_attention";
  return {{"self_attention.linear_qkv.weight", qkv_grouped,
           {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}, {queries, hidden},
           {.bias = {"add_bias_linear", "add_attention_bias", "add_qkv_bias"}, .in = kind}},
          {"self_attention.linear_proj.weight", same, {"self_attn.o_proj.weight"}, {hidden, queries},
           {.bias = {"add_bias_linear", "add_attention_bias"}, .in = kind}}};
}

std::vector<HfTensorGroup> ends_of_model(std::string_view final_norm) {
  return {{"embedding.", "model.", {{"word_embeddings.weight", same, {"embed_tokens.weight"}, {vocab, hidden}, copied}}},
          {"decoder.", "model.", {{"final_norm.weight", same, {final_norm}, {hidden}}}},
          {"", "", {{"output_layer.weight", same, {"lm_head.weight"}, {vocab, hidden}, {{untied}}}}}};
}

std::vector<HfTensorRow> mixer_rows() {
  constexpr std::string_view kind = "linear_attention";
  constexpr std::string_view channels = "mamba_num_heads*mamba_head_dim+2*mamba_num_groups*mamba_state_dim";
  constexpr std::string_view width =
      "2*mamba_num_heads*mamba_head_dim+2*mamba_num_groups*mamba_state_dim+mamba_num_heads";
  const HfTensorOptions plain = {.in = kind}, biased = {.bias = {"mamba_proj_bias"}, .in = kind},
                        conv_biased = {.bias = {"mamba_conv_bias"}, .in = kind};
  return {
      {"in_proj.weight", same, {"in_proj.weight"}, {width, hidden}, biased},
      {"conv1d.weight", same, {"conv1d.weight"}, {channels, "1", "mamba_conv_kernel"}, conv_biased},
      {"dt_bias", same, {"dt_bias"}, {"mamba_num_heads"}, plain},
      {"A_log", same, {"A_log"}, {"mamba_num_heads"}, plain},
      {"D", same, {"D"}, {"mamba_num_heads"}, plain},
      {"norm.weight", same, {"norm.weight"}, {inner}, plain},
      {"out_proj.weight", same, {"out_proj.weight"}, {hidden, inner}, biased}};
}
// clang-format on

}  // namespace teratron::mamba_hf
