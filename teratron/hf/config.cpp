#include "teratron/hf/config.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/ranges.h>

#include "teratron/base/attention_windows.h"
#include "teratron/base/json.h"
#include "teratron/settings/arguments.h"

namespace teratron {

using nlohmann::json;

namespace {

// Reads keys of config.json and collects what is wrong with them.
class ConfigReader {
 public:
  ConfigReader(const json& values, std::string where) : values_(values), where_(std::move(where)) {}

  bool has(std::string_view key) const { return values_.contains(key) && !values_[key].is_null(); }
  const json& at(std::string_view key) const { return values_[key]; }

  /// `otherwise` where the key is missing or not of its type (see HfKey).
  json get(std::string_view key, const json& otherwise) {
    const json fallback = otherwise.is_null() ? json(1) : otherwise;
    if (!has(key)) {
      if (otherwise.is_null()) problem(fmt::format("'{}' is missing", key));
      return fallback;
    }
    const json& value = values_[key];
    const bool is_size = fallback.is_number_integer();
    const bool fits = is_size ? value.is_number_integer() && value >= 1 && value <= int64_t{1} << 31
                      : fallback.is_number() ? value.is_number()
                                             : value.type() == fallback.type();
    if (fits) return fallback.is_number_float() ? json(value.get<double>()) : value;
    problem(fmt::format("'{}' = {} is not a {}", key, printable(value.dump()),
                        is_size ? "size" : fallback.type_name()));
    return fallback;
  }
  int64_t whole(std::string_view key, double otherwise) {
    const double value = get(key, otherwise);
    if (value >= 1 && value <= 1e15 && value == std::floor(value)) return static_cast<int64_t>(value);
    problem(fmt::format("'{}' = {} is not a whole number above 0", key, value));
    return 1;
  }
  void unsupported(bool found, std::string_view key) {
    if (found) problem(fmt::format("'{}' = {} is not supported", key, printable(values_[key].dump())));
  }
  void problem(std::string what) { problems_.push_back({.what = std::move(what), .where = where_}); }
  void finish() {
    if (problems_.empty()) return;
    problems_.back().fix = "No setting here makes such a model: use another model, or correct config.json";
    throw UserError(ExitCode::checkpoint, std::move(problems_));
  }

 private:
  const json& values_;
  std::string where_;
  std::vector<Problem> problems_;
};

void read_key(const HfKey& key, ConfigReader& config, json& settings) {
  if (key.export_only) return;
  const json otherwise = key.derived ? json(key.derived(settings)) : key.otherwise;
  json value = key.key.empty() ? otherwise : config.get(key.key, otherwise);
  if (key.setting.empty()) return config.unsupported(value != otherwise, key.key);
  if (key.values.is_object()) {
    const auto found = key.values.find(value.get<std::string>());
    if (found == key.values.end()) return config.unsupported(true, key.key);
    value = *found;
  }
  if (key.negated) value = !value.get<bool>();
  const auto [entry, is_new] = settings.emplace(key.setting, value);
  if (!is_new && *entry != value) {
    config.problem(fmt::format("'{}' = {} is not supported where {} is {}", key.key, value.dump(),
                               key.setting, entry->dump()));
  }
}

void write_key(const HfKey& key, const json& settings, json& config) {
  if (key.key.empty() || key.setting.empty()) return;
  const json& value = settings.at(key.setting);
  json& written = config[key.key] = key.otherwise.is_number_float() ? json(value.get<double>()) : value;
  if (key.negated) written = !value.get<bool>();
  for (const auto& [name, meaning] : key.values.items()) {
    if (meaning == value && written == value) written = name;
  }
}

// Megatron-LM has these as constants.
const json llama3_rope = {
    {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};

void read_rope(ConfigReader& config, json& settings) {
  settings["rotary_base"] = config.whole("rope_theta", 1e4);
  config.unsupported(config.get("partial_rotary_factor", 1.0) != 1.0, "partial_rotary_factor");
  const std::string type = config.get("rope_type", config.get("type", "default"));
  if (type == "llama3") {
    settings["use_rope_scaling"] = true;
    settings["rope_scaling_factor"] = config.get("factor", 8.0);
    for (const auto& [key, constant] : llama3_rope.items())
      config.unsupported(config.get(key, constant.get<double>()) != constant, key);
  } else if (type == "linear") {
    settings["rotary_seq_len_interpolation_factor"] = config.whole("factor", 0.0);
  } else if (type != "default") {
    config.problem(fmt::format("rope type '{}' is not supported", printable(type)));
  }
}

json write_rope(const json& settings) {
  json rope = {{"rope_type", "default"}, {"rope_theta", settings.at("rotary_base").get<double>()}};
  if (settings.at("use_rope_scaling")) {
    rope.update({{"rope_type", "llama3"}, {"factor", settings.at("rope_scaling_factor")}});
    rope.update(llama3_rope);
  } else if (const json& factor = settings.at("rotary_seq_len_interpolation_factor"); !factor.is_null()) {
    rope.update({{"rope_type", "linear"}, {"factor", factor.get<double>()}});
  }
  return rope;
}

// 1 for each layer with the window: by layer_types, or all from max_window_layers on.
std::vector<int64_t> windowed_layers(HfWindows kind, ConfigReader& config, int64_t layers) {
  std::vector<int64_t> windowed(static_cast<size_t>(layers), 1);
  if (kind == HfWindows::all_layers) return windowed;
  if (!config.has("layer_types")) {
    const double first = config.get("max_window_layers", 28.0);
    for (int64_t layer = 0; layer < layers; ++layer) windowed[layer] = static_cast<double>(layer) >= first;
    return windowed;
  }
  const json& types = config.at("layer_types");
  bool known = types.is_array() && types.size() == windowed.size();
  for (size_t layer = 0; known && layer < windowed.size(); ++layer) {
    windowed[layer] = types[layer] == "sliding_attention";
    known = windowed[layer] == 1 || types[layer] == "full_attention";
  }
  config.unsupported(!known, "layer_types");
  return windowed;
}

void read_windows(HfWindows kind, ConfigReader& config, json& settings) {
  const bool used = kind == HfWindows::all_layers || config.get("use_sliding_window", false);
  if (!used || !config.has("sliding_window")) return;
  const int64_t window = config.get("sliding_window", nullptr), layers = settings["num_layers"];
  if (window >= settings["max_position_embeddings"]) return;  // every position sees all before it
  const std::vector<int64_t> windowed = windowed_layers(kind, config, layers);
  const auto count = std::count(windowed.begin(), windowed.end(), 1);
  if (count > 0) settings["window_size"] = fmt::format("{},0", window - 1);
  if (count > 0 && count < layers)
    settings["window_attn_skip_freq"] = fmt::format("[{}]", fmt::join(windowed, ","));
}

void write_windows(HfWindows kind, const std::vector<int64_t>& windows, json& config) {
  if (kind == HfWindows::all_layers) config["sliding_window"] = windows.empty() ? json() : json(windows[0]);
  if (kind != HfWindows::per_layer || windows.empty()) return;
  json types = json::array();
  for (const int64_t window : windows) types.push_back(window > 0 ? "sliding_attention" : "full_attention");
  const auto first = std::find_if(windows.begin(), windows.end(), [](int64_t window) { return window > 0; });
  config.update({{"use_sliding_window", true},
                 {"sliding_window", *first},
                 {"max_window_layers", first - windows.begin()},
                 {"layer_types", types}});
}

// Sizes that follow from several keys.
void finish_sizes(ConfigReader& config, json& settings) {
  const int64_t heads = settings["num_attention_heads"], hidden = settings["hidden_size"];
  const int64_t groups = settings.value("num_query_groups", heads);
  if (heads % groups != 0) config.problem("'num_attention_heads' is not divisible by 'num_key_value_heads'");
  if (!config.has("head_dim") && hidden % heads != 0)
    config.problem(fmt::format("hidden size {} is not divisible by {} heads", hidden, heads));
  settings.emplace("kv_channels", hidden / heads);
  settings["group_query_attention"] = groups != heads;
  settings["num_query_groups"] = groups != heads ? groups : 1;
  settings["seq_length"] = settings["max_position_embeddings"];
}

// Per layer; empty: every query sees all keys.
std::vector<int64_t> windows_of(const Arguments& args, const std::string& where) {
  const int64_t layers = args.num_layers.value();
  if ((args.window_size && !is_valid_window_size(*args.window_size)) ||
      (args.window_attn_skip_freq && !is_valid_window_pattern(*args.window_attn_skip_freq, layers))) {
    throw checkpoint_error(
        {.what = "the saved window_size or window_attn_skip_freq is malformed", .where = where});
  }
  std::vector<int64_t> windows = attention_windows({args.window_size, args.window_attn_skip_freq}, layers);
  if (std::count(windows.begin(), windows.end(), 0) == layers) windows.clear();
  return windows;
}

// A checkpoint's settings in the form of an import's. Checks what keeps hf_name_map() within the tensors'
// sizes.
json settings_of(const Arguments& args, const CheckpointInfo& info, const std::string& where) {
  json settings = json::parse(to_json(args));
  for (const char* name : {"num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads",
                           "kv_channels", "max_position_embeddings"}) {
    if (settings[name].is_null())
      throw checkpoint_error({.what = fmt::format("its settings lack {}", name), .where = where});
  }
  const auto rows_of = [&](const std::string& name) {
    const auto found = info.tensors.find(name);
    if (found != info.tensors.end() && !found->second.shape.empty()) return found->second.shape[0];
    throw checkpoint_error(
        {.what = fmt::format("tensor \"{}\" is missing: this is not a GPT model", name), .where = where});
  };
  const int64_t heads = *args.num_attention_heads, groups = query_groups(args);
  const int64_t rows =
      rows_of(fmt::format("decoder.layers.{}.self_attention.linear_qkv.weight", *args.num_layers - 1));
  if (rows % *args.kv_channels != 0 || rows / *args.kv_channels - heads != 2 * groups) {
    throw checkpoint_error(
        {.what = fmt::format("{} heads do not fit the attention's shapes", heads), .where = where});
  }
  settings["num_query_groups"] = groups;
  settings["group_query_attention"] = groups != heads;
  settings["add_qkv_bias"] = args.add_qkv_bias && !args.add_bias_linear;
  settings["vocab_size"] = rows_of("embedding.word_embeddings.weight");
  return settings;
}

const HfFamily& family_of(const json& settings, const std::vector<int64_t>& windows,
                          const std::string& where) {
  // Settings that change what is computed and that a family has only among its fixed ones.
  json excluded = {{"squared_relu", false},       {"geglu", false},
                   {"rotary_interleaved", false}, {"apply_layernorm_1p", false},
                   {"rotary_percent", 1.0},       {"apply_residual_connection_post_layernorm", false},
                   {"qk_layernorm", false}};
  const bool uniform =
      std::adjacent_find(windows.begin(), windows.end(), std::not_equal_to<>()) == windows.end();
  for (const HfFamily& family : hf_families()) {
    json expected = settings;
    expected.update(excluded);
    expected.update(family.fixed);
    const bool has_windows = family.windows == HfWindows::per_layer ||
                             (family.windows == HfWindows::all_layers && uniform) || windows.empty();
    if (expected == settings && has_windows) return family;
  }
  std::vector<std::string> found;
  for (const char* name : {"position_embedding_type", "normalization", "swiglu", "add_bias_linear",
                           "add_qkv_bias", "num_query_groups", "window_size", "window_attn_skip_freq"})
    found.push_back(fmt::format("{} {}", name, printable(settings.at(name).dump())));
  for (const auto& [name, value] : excluded.items()) {
    if (settings.at(name) != value) found.push_back(fmt::format("{} {}", name, settings.at(name).dump()));
  }
  throw checkpoint_error(
      {.what = fmt::format("no Hugging Face model has {}", fmt::join(found, ", ")),
       .where = where,
       .fix = "GPT-2 (learned_absolute, LayerNorm, biases), Llama (rope, RMSNorm, swiglu), Mistral "
              "(the same with one window in all layers) and Qwen can be exported"});
}

// Old files have rope_theta and rope_scaling, newer ones rope_parameters with both: merges all into one
// object.
json with_rope_keys(json config, const std::string& where) {
  const char* const name =
      config.value("rope_parameters", json()).is_null() ? "rope_scaling" : "rope_parameters";
  const json rope = config.value(name, json());
  if (!rope.is_null() && !rope.is_object())
    throw checkpoint_error({.what = fmt::format("'{}' is not an object", name), .where = where});
  for (const auto& [key, value] : rope.items()) {
    if (!value.is_null()) config[key] = value;
  }
  return config;
}

}  // namespace

HfModel parse_hf_config(const std::string& text, const std::string& where) {
  const json file = parse_json(text, {.where = where, .kind = ExitCode::checkpoint});
  if (!file.is_object()) throw checkpoint_error({.what = "not a JSON object", .where = where});
  const json values = with_rope_keys(file, where);
  ConfigReader config(values, where);
  const std::string type = config.get("model_type", "");
  std::vector<std::string_view> known;
  for (const HfFamily& family : hf_families()) {
    known.push_back(family.model_type);
    if (type != family.model_type) continue;
    json settings = family.fixed;
    for (const HfKey& key : family.keys) read_key(key, config, settings);
    finish_sizes(config, settings);
    if (settings["position_embedding_type"] == "rope") {
      read_rope(config, settings);
      read_windows(family.windows, config, settings);
    }
    config.finish();
    return {&family, std::move(settings), {}};
  }
  throw checkpoint_error({.what = fmt::format("model_type '{}' is not supported", printable(type)),
                          .where = where,
                          .fix = fmt::format("Supported are {}", fmt::join(known, ", "))});
}

HfModel hf_model_of(const CheckpointInfo& info) {
  const std::string where = printable(info.path.string(), 4096);
  std::vector<std::string> unknown;
  const Arguments args = arguments_from_json(info.config, where, &unknown);
  HfModel model{.settings = settings_of(args, info, where), .windows = windows_of(args, where)};
  model.family = &family_of(model.settings, model.windows, where);
  return model;
}

std::string hf_config_text(const HfModel& model, Dtype dtype) {
  const HfFamily& family = *model.family;
  const char* const type = dtype == Dtype::bf16 ? "bfloat16" : dtype == Dtype::f16 ? "float16" : "float32";
  json config = {{"architectures", {family.architecture}},
                 {"model_type", family.model_type},
                 {"dtype", type},
                 {"torch_dtype", type}};
  for (const HfKey& key : family.keys) write_key(key, model.settings, config);
  if (config["vocab_size"] <= family.end_token)
    config.update({{"bos_token_id", nullptr}, {"eos_token_id", nullptr}});
  if (model.settings.at("position_embedding_type") == "rope") {
    json& rope = config["rope_parameters"] = write_rope(model.settings);
    // Releases of transformers before rope_parameters read these two.
    config["rope_theta"] = rope["rope_theta"];
    if (rope["rope_type"] != "default") config["rope_scaling"] = rope;
  }
  write_windows(family.windows, model.windows, config);
  return config.dump(2) + "\n";
}

}  // namespace teratron
