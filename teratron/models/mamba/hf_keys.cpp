#include "teratron/models/mamba/hf_keys.h"

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

// clang-format off
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
