#include "teratron/models/gpt/hf_experts_keys.h"

#include <algorithm>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/base/error.h"

namespace teratron::gpt_hf_keys {

using namespace hf_rows;
using nlohmann::json;

void refuse_unless(HfConfig& config, std::string_view setting, const json& value) {
  const json& actual = config.settings.at(setting);
  if (actual != value) config.problem("{} is {}, not {}", setting, actual.dump(), value.dump());
}

// What no router of transformers has.
void write_plain_router(std::string_view, HfConfig& config) {
  refuse_unless(config, "moe_router_score_function", "softmax");
  refuse_unless(config, "moe_router_topk_scaling_factor", nullptr);
  refuse_unless(config, "moe_router_num_groups", nullptr);
  refuse_unless(config, "moe_router_enable_expert_bias", false);
  if (config.settings.at("moe_router_load_balancing_type") == json({"sinkhorn"}))
    config.problem("moe_router_load_balancing_type is sinkhorn");
}

// Softmax over the chosen experts is the softmax over all, divided by its sum over the chosen ones.
void read_normalized(std::string_view key, HfConfig& config) {
  config.settings["moe_router_pre_softmax"] = !config.get(key, false).get<bool>();
}

void write_normalized(std::string_view key, HfConfig& config) {
  config.keys[key] = !config.is_set("moe_router_pre_softmax");
}

void read_expert_ffn(std::string_view key, HfConfig& config) {
  const json size = config.get(key, nullptr);
  config.settings[std::string(ffn)] = size;
  config.settings[std::string(expert_ffn)] = size;
}

void write_expert_ffn(std::string_view key, HfConfig& config) {
  config.keys[key] = config.settings.at(expert_ffn);
}

std::vector<int64_t> expert_layers(HfConfig& config, int64_t layers) {
  const std::string text = config.settings.value("moe_layer_freq", "1");
  auto pattern = layers > most_layers ? std::nullopt : parse_layer_pattern(text, layers);
  if (!pattern) config.problem("moe_layer_freq = '{}' does not fit {} layers", printable(text), layers);
  return pattern.value_or(std::vector<int64_t>());
}

void write_all_sparse(std::string_view, HfConfig& config) {
  const std::vector<int64_t> pattern = expert_layers(config, config.size("num_layers"));
  if (std::ranges::find(pattern, 0) != pattern.end())
    config.problem("moe_layer_freq is {}", config.settings.at("moe_layer_freq").dump());
}

void write_no_shared(std::string_view, HfConfig& config) {
  refuse_unless(config, shared_ffn, nullptr);
}

HfLayerKinds experts_kinds(HfConfig& config, int64_t layers) {
  HfLayerKinds kinds;
  const bool has_shared = !config.settings.value(shared_ffn, json()).is_null();
  for (const int64_t experts : expert_layers(config, layers)) {
    kinds.push_back({experts != 0 ? "experts" : "mlp"});
    if (experts != 0 && has_shared) kinds.back().push_back("shared experts");
  }
  return kinds;
}

}  // namespace teratron::gpt_hf_keys
