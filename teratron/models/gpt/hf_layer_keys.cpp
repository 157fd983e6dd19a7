#include "teratron/models/gpt/hf_layer_keys.h"

#include <algorithm>
#include <cmath>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/base/error.h"
#include "teratron/models/gpt/hf_keys.h"
#include "teratron/settings/attention_windows.h"

namespace teratron::gpt_hf_keys {

using nlohmann::json;

namespace {

constexpr const char *window_type = "sliding_attention", *whole_type = "full_attention";

int64_t layers_of(HfConfig& config) {
  const int64_t layers = config.size("num_layers");
  if (layers <= hf_rows::most_layers) return layers;
  config.unsupported("num_hidden_layers");
  return 0;
}

json types_of(HfConfig& config, int64_t layers, int64_t full_every) {
  if (config.has("layer_types")) return config.keys["layer_types"];
  json types = json::array();
  for (int64_t layer = 0; layer < layers; ++layer)
    types.push_back((layer + 1) % full_every != 0 ? window_type : whole_type);
  return types;
}

}  // namespace

void read_window_types(HfConfig& config, int64_t full_every) {
  const int64_t layers = layers_of(config);
  const json types = types_of(config, layers, config.get("sliding_window_pattern", full_every));
  const auto windows = std::ranges::count(types, json(window_type));
  if (!types.is_array() || std::ssize(types) != layers ||
      windows + std::ranges::count(types, json(whole_type)) != layers)
    return config.unsupported("layer_types");
  if (windows == 0) return;
  const int64_t window = config.get("sliding_window", nullptr);
  config.settings["window_size"] = fmt::format("{},0", window - 1);
  std::vector<int64_t> pattern;
  for (const json& type : types) pattern.push_back(type == window_type ? 1 : 0);
  if (windows < layers)
    config.settings["window_attn_skip_freq"] = fmt::format("[{}]", fmt::join(pattern, ","));
}

std::vector<int64_t> window_layers(HfConfig& config) {
  WindowOptions options;
  const json &size = config.settings.at("window_size"), &skip = config.settings.at("window_attn_skip_freq");
  if (!size.is_null()) options.window_size = size;
  if (!skip.is_null()) options.window_attn_skip_freq = skip;
  const int64_t layers = layers_of(config);
  if ((!size.is_null() && !is_valid_window_size(*options.window_size)) ||
      (!skip.is_null() && !is_valid_window_pattern(*options.window_attn_skip_freq, layers))) {
    config.problem("window_size or window_attn_skip_freq is malformed");
    return {};
  }
  std::vector<int64_t> windows = attention_windows(options, layers);
  windows.resize(static_cast<size_t>(layers), 0);
  return windows;
}

void write_window_types(std::string_view, HfConfig& config) {
  json types = json::array(), width;
  for (const int64_t window : window_layers(config)) {
    types.push_back(window > 0 ? window_type : whole_type);
    if (window > 0) width = window;
  }
  config.keys.update({{"layer_types", types}, {"sliding_window", width}});
}

namespace {

json object_or_empty(HfConfig& config, std::string_view key, const json& of) {
  const json value = of.value(std::string(key), json());
  if (value.is_null()) return json::object();
  if (value.is_object()) return value;
  config.problem("'{}' is not an object", key);
  return json::object();
}

bool is_scaled(const json& rope) {
  const std::string type = rope.value("rope_type", rope.value("type", "default"));
  return type != "default";
}

}  // namespace

void read_rope_types(HfConfig& config, const RopeTypes& types) {
  const json parameters = object_or_empty(config, "rope_parameters", config.keys);
  json whole = object_or_empty(config, whole_type, parameters),
       local = object_or_empty(config, window_type, parameters);
  const bool by_type = parameters.contains(whole_type) || parameters.contains(window_type);
  if (!by_type) whole = parameters;
  whole.update(object_or_empty(config, "rope_scaling", config.keys));
  whole.emplace("rope_theta", config.get("rope_theta", types.base));
  const json base = types.local.empty() ? json(config.get("rope_theta", types.base))
                                        : json(config.get(types.local, types.local_base));
  local.emplace("rope_theta", !by_type && types.local.empty() ? whole["rope_theta"] : base);
  config.keys["rope_parameters"] = whole;
  config.keys.erase("rope_scaling");
  read_rope("rope_parameters", config);
  if (whole == local || config.settings.value("window_size", json()).is_null()) return;
  if (is_scaled(local))
    return config.problem("rope_parameters.{} = {} is not supported", window_type, local.dump());
  const double theta = local["rope_theta"].is_number() ? local["rope_theta"].get<double>() : 0.0;
  if (theta < 1 || theta != std::floor(theta) || theta > 1e15)
    return config.problem("'rope_theta' = {} of {} is not a whole number above 0", local["rope_theta"].dump(),
                          window_type);
  config.settings["rotary_base_local"] = static_cast<int64_t>(theta);
}

void write_rope_types(HfConfig& config, const RopeTypes& types) {
  write_rope("rope_parameters", config);
  const json whole = config.keys["rope_parameters"], &base = config.settings.at("rotary_base_local");
  json local = whole;
  if (!base.is_null()) local = {{"rope_type", "default"}, {"rope_theta", base.get<double>()}};
  config.keys["rope_parameters"] = {{whole_type, whole}, {window_type, local}};
  if (!types.local.empty()) config.keys[types.local] = local["rope_theta"];
  if (types.local.empty() && local["rope_theta"] != whole["rope_theta"])
    config.problem("rotary_base_local is {}, rotary_base {}", base.dump(),
                   config.settings.at("rotary_base").dump());
}

// Without an attention_factor: sqrt(1 + ln(factor) / ln(length)), the factor by default the positions over
// the length of training.
void read_longrope(HfConfig& config) {
  const auto most = static_cast<double>(config.size("max_position_embeddings"));
  const int64_t length =
      config.get("original_max_position_embeddings", config.size("max_position_embeddings"));
  for (const auto& [key, setting] : {std::pair("short_factor", "longrope_short_factors"),
                                     std::pair("long_factor", "longrope_long_factors")}) {
    const json factors = config.get(key, json::array());
    const bool fits = !factors.empty() && std::ranges::all_of(factors, [](const json& factor) {
      return factor.is_number() && factor.get<double>() > 0.0;
    });
    if (!fits) return config.problem("'{}' of rope type 'longrope' is not a list of numbers above 0", key);
    config.settings[setting] = json::array();
    for (const json& factor : factors) config.settings[setting].push_back(factor.get<double>());
  }
  const double factor = config.get("factor", most / static_cast<double>(length));
  const double usual =
      factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(factor) / std::log(static_cast<double>(length)));
  config.settings.update({{"longrope_original_max_position_embeddings", length},
                          {"longrope_attention_factor", config.get("attention_factor", usual)}});
}

void read_no_rope_layers(std::string_view key, HfConfig& config) {
  const int64_t layers = layers_of(config), every = config.get("no_rope_layer_interval", 4);
  std::vector<int64_t> without;
  if (config.has(key) && !config.keys[key].empty()) {
    const json& with = config.keys[key];
    const bool fits = with.is_array() && std::ssize(with) >= layers &&
                      std::ranges::all_of(with, [](const json& one) { return one == 0 || one == 1; });
    if (!fits) return config.unsupported(key);
    for (int64_t layer = 0; layer < layers; ++layer) without.push_back(with[layer] == 0 ? 1 : 0);
  } else {
    for (int64_t layer = 0; layer < layers; ++layer) without.push_back((layer + 1) % every == 0 ? 1 : 0);
  }
  if (std::ranges::find(without, 1) != without.end())
    config.settings["no_rope_freq"] = fmt::format("[{}]", fmt::join(without, ","));
}

void write_no_rope_layers(std::string_view key, HfConfig& config) {
  const int64_t layers = layers_of(config);
  const json& freq = config.settings.at("no_rope_freq");
  std::vector<int64_t> with(static_cast<size_t>(layers), 1);
  if (!freq.is_null()) {
    const auto without = parse_no_rope_layers(freq.get<std::string>(), layers);
    if (!without) return config.problem("no_rope_freq = {} does not fit {} layers", freq.dump(), layers);
    for (size_t layer = 0; layer < with.size(); ++layer) with[layer] = 1 - without->at(layer);
  }
  config.keys[key] = with;
}

void write_softcap(std::string_view key, std::string_view setting, HfConfig& config) {
  const double cap = config.settings.at(setting);
  config.keys[key] = cap > 0.0 ? json(cap) : json();
}

void read_query_scalar(std::string_view key, HfConfig& config) {
  config.settings["softmax_scale"] = 1.0 / std::sqrt(config.get(key, 256.0).get<double>());
}

void write_query_scalar(std::string_view key, HfConfig& config) {
  const json& scale = config.settings.at("softmax_scale");
  const double scalar = scale.is_null() ? static_cast<double>(config.size("kv_channels"))
                                        : 1.0 / (scale.get<double>() * scale.get<double>());
  if (std::abs(scalar - std::round(scalar)) > 1e-6 * scalar)
    config.problem("softmax_scale = {} is not 1 / sqrt(n) of a whole number n", scale.dump());
  config.keys[key] = std::llround(scalar);
}

}  // namespace teratron::gpt_hf_keys
