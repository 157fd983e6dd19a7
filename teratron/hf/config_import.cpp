#include "teratron/hf/config_import.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "teratron/base/json.h"

namespace teratron {

using nlohmann::json;

namespace {

constexpr std::pair<const char*, HfFamily> families[] = {{"gpt2", HfFamily::gpt2},
                                                         {"llama", HfFamily::llama},
                                                         {"mistral", HfFamily::mistral},
                                                         {"qwen2", HfFamily::qwen2},
                                                         {"qwen3", HfFamily::qwen3}};

// Reads fields and gathers what is wrong with them.
class Fields {
 public:
  Fields(const json& values, std::string where) : values_(values), where_(std::move(where)) {}

  bool has(const char* name) const { return values_.contains(name) && !values_[name].is_null(); }
  const json& at(const char* name) const { return values_[name]; }

  /// A size: 1 to 2^31. Without a default it must be there.
  int64_t size(const char* name, std::optional<int64_t> otherwise = {}) {
    if (!has(name)) {
      if (!otherwise) problem(fmt::format("'{}' is missing", name));
      return otherwise.value_or(1);
    }
    const json& value = values_[name];
    if (!value.is_number_integer() || value < 1 || value > int64_t{1} << 31) {
      problem(fmt::format("'{}' = {} is not a size", name, printable(value.dump())));
      return 1;
    }
    return value;
  }
  double number(const char* name, double otherwise) {
    if (!has(name)) return otherwise;
    if (!values_[name].is_number()) {
      problem(fmt::format("'{}' = {} is not a number", name, printable(values_[name].dump())));
      return otherwise;
    }
    return values_[name];
  }
  bool boolean(const char* name, bool otherwise) {
    if (!has(name)) return otherwise;
    if (!values_[name].is_boolean()) {
      problem(fmt::format("'{}' = {} is neither true nor false", name, printable(values_[name].dump())));
      return otherwise;
    }
    return values_[name];
  }
  std::string text(const char* name, const char* otherwise) {
    if (!has(name)) return otherwise;
    if (!values_[name].is_string()) {
      problem(fmt::format("'{}' = {} is not a text", name, printable(values_[name].dump())));
      return otherwise;
    }
    return values_[name];
  }
  void unsupported(bool asked, const char* name) {
    if (asked) problem(fmt::format("'{}' = {} is not supported", name, printable(values_[name].dump())));
  }
  void problem(std::string what) { problems_.push_back({.what = std::move(what), .where = where_}); }
  void finish() {
    if (problems_.empty()) return;
    problems_.back().fix =
        "No setting here makes such a model; import another, or mend config.json if it is wrong";
    throw UserError(ExitCode::checkpoint, std::move(problems_));
  }

 private:
  const json& values_;
  std::string where_;
  std::vector<Problem> problems_;
};

json common_settings(const HfModel& model) {
  json settings = {{"num_layers", model.layers},
                   {"hidden_size", model.hidden},
                   {"ffn_hidden_size", model.ffn},
                   {"num_attention_heads", model.heads},
                   {"kv_channels", model.kv_channels},
                   {"group_query_attention", model.groups != model.heads},
                   {"max_position_embeddings", model.positions},
                   {"seq_length", model.positions},
                   {"vocab_size", model.vocabulary},
                   {"untie_embeddings_and_output_weights", !model.tied},
                   {"add_bias_linear", model.linear_bias},
                   {"add_qkv_bias", model.qkv_bias}};
  settings["num_query_groups"] = model.groups != model.heads ? model.groups : 1;
  return settings;
}

HfConfig gpt2_config(Fields& fields) {
  HfModel model{.family = HfFamily::gpt2,
                .layers = fields.size("n_layer"),
                .hidden = fields.size("n_embd"),
                .heads = fields.size("n_head"),
                .vocabulary = fields.size("vocab_size"),
                .positions = fields.size("n_positions"),
                .tied = fields.boolean("tie_word_embeddings", true),
                .linear_bias = true};
  model.ffn = fields.size("n_inner", 4 * model.hidden);
  model.groups = model.heads;
  model.kv_channels = model.hidden / model.heads;
  if (model.hidden % model.heads != 0) fields.problem("'n_embd' is not divisible by 'n_head'");
  const std::string activation = fields.text("activation_function", "gelu_new");
  fields.unsupported(activation != "gelu_new" && activation != "gelu_pytorch_tanh" && activation != "gelu",
                     "activation_function");
  fields.unsupported(!fields.boolean("scale_attn_weights", true), "scale_attn_weights");
  fields.unsupported(fields.boolean("scale_attn_by_inverse_layer_idx", false),
                     "scale_attn_by_inverse_layer_idx");
  fields.unsupported(fields.boolean("add_cross_attention", false), "add_cross_attention");
  json settings = common_settings(model);
  settings.update({{"position_embedding_type", "learned_absolute"},
                   {"normalization", "LayerNorm"},
                   {"norm_epsilon", fields.number("layer_norm_epsilon", 1e-5)},
                   {"swiglu", false},
                   {"bias_gelu_fusion", activation != "gelu"},
                   {"hidden_dropout", fields.number("resid_pdrop", 0.1)},
                   {"attention_dropout", fields.number("attn_pdrop", 0.1)},
                   {"init_method_std", fields.number("initializer_range", 0.02)}});
  return {model, settings.dump()};
}

// Old files have rope_theta and rope_scaling, newer ones rope_parameters with both.
void read_rope(Fields& fields, json& settings, const std::string& where) {
  const json empty = json::object();
  const char* const name = fields.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const json& value = fields.has(name) ? fields.at(name) : empty;
  if (!value.is_object()) return fields.problem(fmt::format("'{}' is not an object", name));
  Fields rope(value, where + ": " + name);
  const double theta =
      rope.has("rope_theta") ? rope.number("rope_theta", 1e4) : fields.number("rope_theta", 1e4);
  if (theta != std::floor(theta) || theta < 1 || theta > 1e15) {
    return fields.problem(fmt::format("'rope_theta' = {} is not a whole number", theta));
  }
  settings["rotary_base"] = static_cast<int64_t>(theta);
  const double partial = fields.number("partial_rotary_factor", rope.number("partial_rotary_factor", 1.0));
  if (partial != 1.0) fields.problem(fmt::format("'partial_rotary_factor' = {} is not supported", partial));
  const std::string type = rope.text("rope_type", rope.text("type", "default").c_str());
  if (type == "llama3") {
    settings["use_rope_scaling"] = true;
    settings["rope_scaling_factor"] = rope.number("factor", 8.0);
    // Megatron-LM has these three as constants.
    rope.unsupported(rope.number("low_freq_factor", 1.0) != 1.0, "low_freq_factor");
    rope.unsupported(rope.number("high_freq_factor", 4.0) != 4.0, "high_freq_factor");
    rope.unsupported(rope.number("original_max_position_embeddings", 8192) != 8192,
                     "original_max_position_embeddings");
  } else if (type == "linear") {
    const double factor = rope.number("factor", 0);
    if (factor != std::floor(factor) || factor < 1 || factor > 1e9) {
      rope.problem(fmt::format("'factor' = {} is not a whole number above 0", factor));
    }
    settings["rotary_seq_len_interpolation_factor"] = static_cast<int64_t>(factor);
  } else if (type != "default") {
    fields.problem(fmt::format("rope type '{}' is not supported", printable(type)));
  }
  rope.finish();
}

// Biases of the attention projections: Llama's switch is for all four, Qwen2 has them on q, k and v alone.
void read_biases(Fields& fields, HfModel& model) {
  const bool attention = fields.boolean("attention_bias", false);
  const bool mlp = fields.boolean("mlp_bias", false);
  if (model.family == HfFamily::qwen2) {
    model.qkv_bias = true;
  } else if (attention != mlp) {
    fields.problem(
        fmt::format("'attention_bias' = {} with 'mlp_bias' = {} is not supported: there is one switch for "
                    "the biases of all linear layers",
                    attention, mlp));
  } else {
    model.linear_bias = attention;
  }
}

// Whether each layer of a Qwen model has the window: by layer_types, or all from max_window_layers on.
std::vector<int64_t> windowed_layers(Fields& fields, const HfModel& model) {
  std::vector<int64_t> windowed(static_cast<size_t>(model.layers), 1);
  if (!fields.has("layer_types")) {
    const double first = fields.number("max_window_layers", 28);
    for (int64_t layer = 0; layer < model.layers; ++layer) {
      windowed[layer] = static_cast<double>(layer) >= first ? 1 : 0;
    }
    return windowed;
  }
  const json& types = fields.at("layer_types");
  bool known = types.is_array() && types.size() == windowed.size();
  for (size_t layer = 0; known && layer < windowed.size(); ++layer) {
    windowed[layer] = types[layer] == "sliding_attention" ? 1 : 0;
    known = windowed[layer] == 1 || types[layer] == "full_attention";
  }
  fields.unsupported(!known, "layer_types");
  return windowed;
}

void read_window(Fields& fields, const HfModel& model, json& settings) {
  const bool mistral = model.family == HfFamily::mistral;
  const bool used = mistral || fields.boolean("use_sliding_window", false);
  if (!used || !fields.has("sliding_window")) return;
  const int64_t window = fields.size("sliding_window");
  if (window >= model.positions) return;  // every position sees all before it
  const std::vector<int64_t> windowed =
      mistral ? std::vector<int64_t>(static_cast<size_t>(model.layers), 1) : windowed_layers(fields, model);
  const auto count = std::count(windowed.begin(), windowed.end(), 1);
  if (count == 0) return;
  settings["window_size"] = fmt::format("{},0", window - 1);
  if (count < model.layers) settings["window_attn_skip_freq"] = fmt::format("[{}]", fmt::join(windowed, ","));
}

HfConfig llama_config(Fields& fields, HfFamily family, const std::string& where) {
  HfModel model{.family = family,
                .layers = fields.size("num_hidden_layers"),
                .hidden = fields.size("hidden_size"),
                .ffn = fields.size("intermediate_size"),
                .heads = fields.size("num_attention_heads"),
                .vocabulary = fields.size("vocab_size"),
                .positions = fields.size("max_position_embeddings", 2048),
                .tied = fields.boolean("tie_word_embeddings", false)};
  model.groups = fields.size("num_key_value_heads", model.heads);
  if (model.heads % model.groups != 0)
    fields.problem("'num_attention_heads' is no multiple of 'num_key_value_heads'");
  if (!fields.has("head_dim") && model.hidden % model.heads != 0) {
    fields.problem("'hidden_size' is not divisible by 'num_attention_heads'");
  }
  model.kv_channels = fields.size("head_dim", std::max<int64_t>(model.hidden / model.heads, 1));
  fields.unsupported(fields.text("hidden_act", "silu") != "silu", "hidden_act");
  read_biases(fields, model);
  json settings = common_settings(model);
  settings.update({{"position_embedding_type", "rope"},
                   {"normalization", "RMSNorm"},
                   {"norm_epsilon", fields.number("rms_norm_eps", 1e-6)},
                   {"swiglu", true},
                   {"hidden_dropout", 0.0},
                   {"attention_dropout", fields.number("attention_dropout", 0.0)},
                   {"init_method_std", fields.number("initializer_range", 0.02)}});
  if (family == HfFamily::qwen3) settings["qk_layernorm"] = true;
  read_rope(fields, settings, where);
  read_window(fields, model, settings);
  return {model, settings.dump()};
}

}  // namespace

HfConfig parse_hf_config(const std::string& text, const std::string& where) {
  const json value = parse_json(text, {.where = where, .kind = ExitCode::checkpoint});
  if (!value.is_object()) throw checkpoint_error({.what = "not a JSON object", .where = where});
  Fields fields(value, where);
  const std::string type = fields.text("model_type", "");
  for (const auto& [name, family] : families) {
    if (type != name) continue;
    HfConfig config = family == HfFamily::gpt2 ? gpt2_config(fields) : llama_config(fields, family, where);
    fields.finish();
    return config;
  }
  throw checkpoint_error({.what = fmt::format("model_type '{}' is not supported", printable(type)),
                          .where = where,
                          .fix = "Supported are gpt2, llama, mistral, qwen2 and qwen3"});
}

}  // namespace teratron
