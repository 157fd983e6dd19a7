#include "teratron/models/gpt/hf_keys.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/settings/attention_windows.h"

namespace teratron::gpt_hf_keys {

using namespace hf_rows;
using nlohmann::json;

// Without key: as many as heads.
void read_query_groups(std::string_view key, HfConfig& config) {
  const int64_t heads = config.size("num_attention_heads");
  const int64_t groups = key.empty() ? heads : config.get(key, heads).get<int64_t>();
  if (heads % groups != 0) config.problem("'num_attention_heads' is not divisible by '{}'", key);
  config.settings["group_query_attention"] = groups != heads;
  config.settings["num_query_groups"] = groups != heads ? groups : 1;
}

void write_query_groups(std::string_view key, HfConfig& config) {
  const int64_t heads = config.size("num_attention_heads");
  const int64_t groups = config.is_set("group_query_attention") ? config.size("num_query_groups") : heads;
  if (key.empty() ? groups != heads : groups > 0 && heads % groups != 0)
    config.problem("num_query_groups is {} for {} heads", groups, heads);
  if (!key.empty()) config.keys[key] = groups;
}

// add_bias_linear and add_attention_bias include the bias of QKV.
void write_qkv_bias(std::string_view, HfConfig& config) {
  if (config.is_set("add_qkv_bias") && !config.is_set("add_bias_linear") &&
      !config.is_set("add_attention_bias"))
    config.problem("add_qkv_bias is true, not false");
}

void write_no_attention_bias(std::string_view, HfConfig& config) {
  if (config.is_set("add_attention_bias") && !config.is_set("add_bias_linear"))
    config.problem("add_attention_bias is true, not false");
}

void read_biases(std::string_view key, HfConfig& config) {
  const bool attention = config.get(key, false), mlp = config.get("mlp_bias", false);
  if (mlp && !attention) config.problem("'mlp_bias' = true is not supported without '{}'", key);
  config.settings.update({{"add_bias_linear", attention && mlp}, {"add_attention_bias", attention && !mlp}});
}

void write_biases(std::string_view key, HfConfig& config) {
  const bool all = config.is_set("add_bias_linear");
  config.keys.update({{std::string(key), all || config.is_set("add_attention_bias")}, {"mlp_bias", all}});
}

// gelu_new is the tanh form, the default here; gelu is that by erf.
void write_gelu(std::string_view key, HfConfig& config) {
  const bool tanh = config.is_set("bias_gelu_fusion") || config.is_set("openai_gelu");
  config.keys[key] = tanh ? "gelu_new" : "gelu";
}

// transformers has only the tanh form here.
void write_tanh_gelu(std::string_view, HfConfig& config) {
  if (!config.is_set("bias_gelu_fusion") && !config.is_set("openai_gelu"))
    config.problem("bias_gelu_fusion is false, not true");
}

// There is no key for another width.
void write_bloom_ffn(std::string_view, HfConfig& config) {
  if (config.size("ffn_hidden_size") != config.size("4*hidden_size"))
    config.problem("ffn_hidden_size is {}, not 4 * hidden_size", config.size("ffn_hidden_size"));
}

// Gemma's first files say gelu and mean the tanh form.
void read_gemma_gelu(std::string_view key, HfConfig& config) {
  const std::string act = config.get(key, "gelu_pytorch_tanh");
  if (act != "gelu" && act != "gelu_pytorch_tanh") config.unsupported(key);
  if (config.get("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh")
    config.unsupported("hidden_activation");
  config.settings["geglu"] = true;
}

void write_gemma_gelu(std::string_view key, HfConfig& config) {
  if (!config.is_set("geglu")) config.problem("geglu is false, not true");
  config.keys[key] = config.keys["hidden_activation"] = "gelu_pytorch_tanh";
}

// A smaller vocabulary does not have transformers' default, 50256.
void write_special_tokens(std::string_view, HfConfig& config) {
  if (config.size("vocab_size") <= 50256) config.keys["bos_token_id"] = config.keys["eos_token_id"] = nullptr;
}

namespace {

// A constant in Megatron-LM.
constexpr double llama3_low = 1.0;

int64_t whole(HfConfig& config, std::string_view key, double otherwise) {
  const double value = config.get(key, otherwise);
  if (value >= 1 && value <= 1e15 && value == std::floor(value)) return static_cast<int64_t>(value);
  config.problem("'{}' = {} is not a whole number above 0", key, value);
  return 1;
}

// What a dict of positions may hold. transformers leaves out those that are not of the dict's type.
constexpr std::string_view rope_dict_keys[] = {"rope_type",        "type",
                                               "rope_theta",       "partial_rotary_factor",
                                               "factor",           "original_max_position_embeddings",
                                               "low_freq_factor",  "high_freq_factor",
                                               "attention_factor", "beta_fast",
                                               "beta_slow",        "mscale",
                                               "mscale_all_dim",   "truncate",
                                               "short_factor",     "long_factor",
                                               "finetuned"};

// The dict of a newer file, or of an older one's scaling, merged into the keys. Where both are there, every
// release of transformers takes the scaling alone. A length of training beside the dict goes before its own.
void flatten_rope(HfConfig& config) {
  const bool scales = config.has("rope_scaling") && !config.keys["rope_scaling"].empty();
  const char* const name = scales ? "rope_scaling" : "rope_parameters";
  const json rope = config.has(name) ? config.keys[name] : json::object();
  if (!rope.is_object()) return config.problem("'{}' is not an object", name);
  for (const auto& [key, value] : rope.items()) {
    if (value.is_null() || (key == "original_max_position_embeddings" && config.has(key))) continue;
    if (std::ranges::find(rope_dict_keys, key) == std::end(rope_dict_keys))
      config.problem("'{}.{}' = {} is not supported", name, printable(key), printable(value.dump()));
    config.keys[key] = value;
  }
}

// Without a length of training: the positions.
int64_t original_positions(HfConfig& config) {
  return whole(config, "original_max_position_embeddings",
               static_cast<double>(config.size("max_position_embeddings")));
}

void read_llama3(HfConfig& config) {
  for (const std::string_view key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    if (!config.has(key)) config.problem("'{}' of rope type 'llama3' is missing", key);
  }
  config.settings.update({{"use_rope_scaling", true},
                          {"rope_scaling_factor", config.get("factor", 8.0)},
                          {"rope_scaling_original_max_position_embeddings", original_positions(config)}});
  if (config.get("low_freq_factor", llama3_low) != llama3_low) config.unsupported("low_freq_factor");
  config.settings["rope_scaling_high_freq_factor"] = config.get("high_freq_factor", 4.0);
}

// transformers' factor of queries and keys: given, or that of mscale and mscale_all_dim where both are above
// 0, or 0.1 ln(factor) + 1.
void read_yarn_magnitude(double factor, HfConfig& config) {
  const double mscale = config.get("mscale", 0.0), all_dim = config.get("mscale_all_dim", 0.0);
  if (config.has("attention_factor")) {
    const double magnitude = config.get("attention_factor", 1.0);
    if (factor > 1 && magnitude >= 1) {
      config.settings["mscale"] = (magnitude - 1) / (0.1 * std::log(factor));
    } else if (magnitude != 1) {
      config.problem("'attention_factor' = {} is not supported with 'factor' = {}", magnitude, factor);
    }
  } else if (mscale > 0 && all_dim > 0) {
    config.settings.update({{"mscale", mscale}, {"mscale_all_dim", all_dim}});
  }
}

// Without a factor: the positions over the original ones.
void read_yarn(HfConfig& config) {
  const auto most = static_cast<double>(config.size("max_position_embeddings"));
  const int64_t original = original_positions(config);
  const double factor = config.get("factor", most / static_cast<double>(original));
  if (!(factor >= 1)) config.problem("'factor' = {} is below 1", factor);
  const double fast = config.get("beta_fast", 32.0), slow = config.get("beta_slow", 1.0);
  config.settings.update({{"position_embedding_type", "yarn"},
                          {"rotary_scaling_factor", factor},
                          {"yarn_original_max_position_embeddings", original},
                          {"yarn_beta_fast", fast == 0 ? 32.0 : fast},
                          {"yarn_beta_slow", slow == 0 ? 1.0 : slow},
                          {"yarn_correction_range_round_to_int", config.get("truncate", true)}});
  read_yarn_magnitude(factor, config);
}

// Reads merged keys, without their partial_rotary_factor.
void read_rope_type(HfConfig& config) {
  config.settings["position_embedding_type"] = "rope";
  config.settings["rotary_base"] = whole(config, "rope_theta", 1e4);
  const std::string type = config.get("rope_type", config.get("type", "default"));
  if (type == "linear") {
    config.settings["rotary_seq_len_interpolation_factor"] = whole(config, "factor", 0.0);
  } else if (type == "llama3") {
    read_llama3(config);
  } else if (type == "yarn") {
    read_yarn(config);
  } else if (type == "longrope") {
    read_longrope(config);
  } else if (type != "default") {
    config.problem("rope type '{}' is not supported", printable(type));
  }
}

}  // namespace

// Old files have rope_theta and rope_scaling, newer ones rope_parameters with both.
void read_rope(std::string_view, HfConfig& config) {
  flatten_rope(config);
  if (config.get("partial_rotary_factor", 1.0) != 1.0) config.unsupported("partial_rotary_factor");
  read_rope_type(config);
}

// GPT-NeoX has other names beside the dict.
void read_partial_rope(std::string_view key, HfConfig& config) {
  for (const auto& [old, key] :
       {std::pair("rotary_emb_base", "rope_theta"), std::pair("rotary_pct", "partial_rotary_factor")}) {
    if (!config.has(old)) continue;
    if (config.has(key) && config.keys[key] != config.keys[old])
      config.problem("'{}' and '{}' differ", old, key);
    config.keys[key] = config.keys[old];
  }
  read_rope_share(key, config);
}

void write_partial_rope(std::string_view key, HfConfig& config) {
  write_rope_share(key, config);
  // transformers 4
  config.keys["rotary_pct"] = config.settings.at("rotary_percent");
  config.keys["rotary_emb_base"] = config.keys["rope_theta"];
}

void read_rope_share(std::string_view, HfConfig& config) {
  flatten_rope(config);
  config.settings["rotary_percent"] = config.get("partial_rotary_factor", 0.25);
  read_rope_type(config);
}

void read_half_rope(std::string_view key, HfConfig& config) {
  config.keys.emplace("partial_rotary_factor", 0.5);
  read_rope_share(key, config);
}

void write_rope_share(std::string_view key, HfConfig& config) {
  write_rope(key, config);
  const json& percent = config.settings.at("rotary_percent");
  config.keys["partial_rotary_factor"] = percent;
  config.keys["rope_parameters"]["partial_rotary_factor"] = percent;
  if (config.keys.contains("rope_scaling")) config.keys["rope_scaling"]["partial_rotary_factor"] = percent;
}

namespace {

json yarn_parameters(HfConfig& config) {
  const double factor = config.settings.at("rotary_scaling_factor"), mscale = config.settings.at("mscale");
  const double all_dim = config.settings.at("mscale_all_dim");
  json rope = {
      {"rope_type", "yarn"},
      {"factor", factor},
      {"original_max_position_embeddings", config.settings.at("yarn_original_max_position_embeddings")},
      {"beta_fast", config.settings.at("yarn_beta_fast")},
      {"beta_slow", config.settings.at("yarn_beta_slow")},
      {"truncate", config.settings.at("yarn_correction_range_round_to_int")}};
  if (mscale > 0 && all_dim > 0) {
    rope.update({{"mscale", mscale}, {"mscale_all_dim", all_dim}});
  } else if (mscale != 1 || all_dim > 0) {
    const auto magnitude = [&](double scale) { return 0.1 * scale * std::log(factor) + 1; };
    rope["attention_factor"] = magnitude(mscale) / magnitude(all_dim);
  }
  return rope;
}

}  // namespace

void write_rope(std::string_view, HfConfig& config) {
  const std::string position = config.settings.at("position_embedding_type");
  if (position != "rope" && position != "yarn")
    config.problem("position_embedding_type is \"{}\", not \"rope\" or \"yarn\"", printable(position));
  const json& interpolation = config.settings.at("rotary_seq_len_interpolation_factor");
  json rope = {{"rope_type", "default"}, {"rope_theta", config.settings.at("rotary_base").get<double>()}};
  if (!interpolation.is_null())
    rope.update({{"rope_type", "linear"}, {"factor", interpolation.get<double>()}});
  if (config.is_set("use_rope_scaling")) {
    rope.update({{"rope_type", "llama3"}, {"factor", config.settings.at("rope_scaling_factor")}});
    rope.update({{"low_freq_factor", llama3_low},
                 {"high_freq_factor", config.settings.at("rope_scaling_high_freq_factor")}});
    rope["original_max_position_embeddings"] =
        config.settings.at("rope_scaling_original_max_position_embeddings");
    if (interpolation > 1)
      config.problem("rotary_seq_len_interpolation_factor is set under use_rope_scaling");
  }
  if (position == "yarn") {
    rope.update(yarn_parameters(config));
    if (!interpolation.is_null() || config.is_set("use_rope_scaling"))
      config.problem("another scaling of positions is set beside yarn");
  }
  config.keys["rope_parameters"] = rope;
  // Releases of transformers before rope_parameters read these two.
  config.keys["rope_theta"] = rope["rope_theta"];
  if (rope["rope_type"] != "default") config.keys["rope_scaling"] = rope;
}

// Windows: W keys there, the query's own included, are --window-size W-1,0 here. Key sliding_window: in all
// layers; key layer_types: in those it names, else, as the model type has it, from max_window_layers on or in
// every second below; without key: none.
namespace {
constexpr int64_t most_layers = 1 << 20;
constexpr const char *sliding = "sliding_attention", *full = "full_attention";
}  // namespace

static bool is_full_attention(std::string_view key, const HfConfig& config) {
  return !config.has(key) ||
         std::ranges::all_of(config.keys[key], [](const json& type) { return type == full; });
}

static void read_window_layers(std::string_view key, HfConfig& config, bool (*has_window)(int64_t, double)) {
  const bool per_layer = key == "layer_types";
  if (!config.has("sliding_window") || (per_layer && !config.get("use_sliding_window", false))) {
    if (per_layer && !is_full_attention(key, config)) config.unsupported(key);
    return;
  }
  const int64_t window = config.get("sliding_window", nullptr), layers = config.size("num_layers");
  if (window >= config.size("max_position_embeddings")) return;  // every position sees all before it
  if (layers > most_layers) return config.unsupported("num_hidden_layers");
  json types(static_cast<size_t>(layers), sliding);
  const double most = config.get("max_window_layers", 28.0);
  for (int64_t layer = 0; per_layer && layer < layers; ++layer)
    types[layer] = has_window(layer, most) ? sliding : full;
  if (per_layer && config.has(key)) types = config.keys[key];
  const auto windows = std::count(types.begin(), types.end(), sliding);
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers ||
      windows + std::count(types.begin(), types.end(), full) != layers)
    return config.unsupported(key);
  if (windows > 0) config.settings["window_size"] = fmt::format("{},0", window - 1);
  if (windows == 0 || windows == layers) return;
  std::vector<int> pattern;
  for (const json& type : types) pattern.push_back(type == sliding);
  config.settings["window_attn_skip_freq"] = fmt::format("[{}]", fmt::join(pattern, ","));
}

void read_windows(std::string_view key, HfConfig& config) {
  read_window_layers(key, config,
                     [](int64_t layer, double first) { return static_cast<double>(layer) >= first; });
}

void read_alternating_windows(std::string_view key, HfConfig& config) {
  read_window_layers(key, config, [](int64_t layer, double end) {
    return layer % 2 == 0 && static_cast<double>(layer) < end;
  });
}

void write_windows(std::string_view key, HfConfig& config) {
  WindowOptions options;
  const json &size = config.settings.at("window_size"), &skip = config.settings.at("window_attn_skip_freq");
  if (!size.is_null()) options.window_size = size;
  if (!skip.is_null()) options.window_attn_skip_freq = skip;
  const int64_t layers = config.size("num_layers");
  if (layers > most_layers) return config.problem("num_layers is {}", layers);
  if ((!size.is_null() && !is_valid_window_size(*options.window_size)) ||
      (!skip.is_null() && !is_valid_window_pattern(*options.window_attn_skip_freq, layers)))
    return config.problem("window_size or window_attn_skip_freq is malformed");
  const std::vector<int64_t> windows = attention_windows(options, layers);
  const auto first = std::ranges::find_if(windows, [](int64_t window) { return window > 0; });
  if (key == "sliding_window") config.keys[key] = first == windows.end() ? json() : json(*first);
  if (first == windows.end()) return;
  if (key.empty() || (key == "sliding_window" && std::ranges::count(windows, *first) != layers))
    return config.problem("window_size is {}, window_attn_skip_freq {}", size.dump(), skip.dump());
  if (key == "sliding_window") return;
  json types = json::array();
  for (const int64_t window : windows) types.push_back(window > 0 ? sliding : full);
  config.keys.update({{"use_sliding_window", true},
                      {"sliding_window", *first},
                      {"max_window_layers", first - windows.begin()},
                      {"layer_types", types}});
}

}  // namespace teratron::gpt_hf_keys
