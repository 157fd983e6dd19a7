#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

#include "teratron/base/attention_windows.h"
#include "teratron/hf/config_import.h"

namespace teratron {

using nlohmann::json;

namespace {

// A field of the settings, or its default where it is absent or null.
template <typename T>
T setting(const json& settings, const char* name, T otherwise) {
  if (!settings.contains(name) || settings[name].is_null()) return otherwise;
  try {
    return settings[name].get<T>();
  } catch (const json::exception&) {
    throw checkpoint_error({.what = fmt::format("the saved setting {} = {} has another type than expected",
                                                name, printable(settings[name].dump()))});
  }
}

// Settings that change what is computed and that no model of the families exported here has.
void reject_inexpressible(const json& settings, const std::string& where) {
  std::vector<Problem> problems;
  for (const char* name : {"squared_relu", "geglu", "rotary_interleaved", "apply_layernorm_1p",
                           "apply_residual_connection_post_layernorm"}) {
    if (setting(settings, name, false))
      problems.push_back({fmt::format("{} cannot be exported", name), where, ""});
  }
  if (setting(settings, "rotary_percent", 1.0) != 1.0) {
    problems.push_back({"a rotary_percent below 1 cannot be exported", where, ""});
  }
  if (!problems.empty()) throw UserError(ExitCode::checkpoint, std::move(problems));
}

class Tensors {
 public:
  explicit Tensors(const CheckpointInfo& info) : info_(info) {}
  bool has(const std::string& name) const { return info_.tensors.contains(name); }
  int64_t size(const std::string& name, size_t dim) const {
    const auto found = info_.tensors.find(name);
    if (found == info_.tensors.end() || found->second.shape.size() <= dim) {
      throw checkpoint_error({.what = fmt::format("tensor \"{}\" is missing: this is no GPT", name),
                              .where = printable(info_.path.string(), 4096)});
    }
    return found->second.shape[dim];
  }
  int64_t layers() const {
    int64_t count = 0;
    while (has(fmt::format("decoder.layers.{}.self_attention.linear_qkv.weight", count))) ++count;
    return count;
  }

 private:
  const CheckpointInfo& info_;
};

// Of each layer; empty: every query sees all keys.
std::vector<int64_t> windows_of(const json& settings, int64_t layers) {
  const auto text = [&](const char* name) -> std::optional<std::string> {
    const auto value = setting<std::string>(settings, name, "");
    return value.empty() ? std::nullopt : std::optional(value);
  };
  const WindowSettings window{text("window_size"), text("window_attn_skip_freq")};
  if ((window.window_size && !is_window_size(*window.window_size)) ||
      (window.window_attn_skip_freq && !is_window_pattern(*window.window_attn_skip_freq, layers))) {
    throw checkpoint_error({.what = "the saved window_size or window_attn_skip_freq is malformed"});
  }
  std::vector<int64_t> windows = attention_windows(window, layers);
  if (std::count(windows.begin(), windows.end(), 0) == layers) windows.clear();
  return windows;
}

// The window of a family, and what is not possible: none in GPT-2, and the same in all layers of Mistral.
HfFamily with_window(HfFamily family, const json& settings, const HfModel& model, const std::string& where) {
  const std::vector<int64_t> windows = windows_of(settings, model.layers);
  if (windows.empty() || family == HfFamily::qwen2 || family == HfFamily::qwen3) return family;
  const bool everywhere = std::count(windows.begin(), windows.end(), windows[0]) == std::ssize(windows);
  if (family == HfFamily::llama && everywhere && !model.linear_bias) return HfFamily::mistral;
  throw checkpoint_error(
      {.what = "window_size cannot be exported: no Hugging Face model of this shape has such windows",
       .where = where,
       .fix = "A Llama with one window in all layers (as Mistral) and Qwen models can be exported"});
}

void add_windows(const HfModel& model, const std::vector<int64_t>& windows, json& text) {
  if (model.family == HfFamily::mistral) {
    text["sliding_window"] = windows.empty() ? json(nullptr) : json(windows[0]);
    return;
  }
  if (windows.empty()) return;
  json types = json::array();
  for (const int64_t window : windows) types.push_back(window > 0 ? "sliding_attention" : "full_attention");
  const auto first = std::find_if(windows.begin(), windows.end(), [](int64_t window) { return window > 0; });
  text.update({{"use_sliding_window", true},
               {"sliding_window", *first},
               {"max_window_layers", first - windows.begin()},
               {"layer_types", types}});
}

HfFamily family_of(const json& settings, const Tensors& tensors, const HfModel& model,
                   const std::string& where) {
  const std::string first = "decoder.layers.0.";
  const bool rms = setting<std::string>(settings, "normalization", "LayerNorm") == "RMSNorm";
  const bool gated = setting(settings, "swiglu", false);
  const auto position = setting<std::string>(settings, "position_embedding_type", "learned_absolute");
  if (position == "learned_absolute" && !rms && !gated && model.linear_bias && model.groups == model.heads &&
      model.kv_channels * model.heads == model.hidden) {
    return with_window(HfFamily::gpt2, settings, model, where);
  }
  if (position == "rope" && rms && gated) {
    const bool normed = tensors.has(first + "self_attention.q_layernorm.weight");
    const HfFamily family = normed                                 ? HfFamily::qwen3
                            : model.qkv_bias && !model.linear_bias ? HfFamily::qwen2
                                                                   : HfFamily::llama;
    return with_window(family, settings, model, where);
  }
  throw checkpoint_error(
      {.what =
           fmt::format("no Hugging Face model has position_embedding_type {}, normalization {}, swiglu {}, "
                       "add_bias_linear {}, {} heads in {} groups",
                       printable(position), rms ? "RMSNorm" : "LayerNorm", gated, model.linear_bias,
                       model.heads, model.groups),
       .where = where,
       .fix = "GPT-2 (learned_absolute, LayerNorm, biases) and Llama, Qwen2, Qwen3 (rope, RMSNorm, swiglu) "
              "can be "
              "exported"});
}

json rope_parameters(const json& settings) {
  json rope = {{"rope_type", "default"}, {"rope_theta", setting(settings, "rotary_base", 10000.0)}};
  if (setting(settings, "use_rope_scaling", false)) {
    rope.update({{"rope_type", "llama3"},
                 {"factor", setting(settings, "rope_scaling_factor", 8.0)},
                 {"low_freq_factor", 1.0},
                 {"high_freq_factor", 4.0},
                 {"original_max_position_embeddings", 8192}});
  } else if (settings.contains("rotary_seq_len_interpolation_factor") &&
             !settings["rotary_seq_len_interpolation_factor"].is_null()) {
    rope.update(
        {{"rope_type", "linear"}, {"factor", setting(settings, "rotary_seq_len_interpolation_factor", 1.0)}});
  }
  return rope;
}

json gpt2_text(const HfModel& model, const json& settings) {
  json text = {{"architectures", {"GPT2LMHeadModel"}},
               {"model_type", "gpt2"},
               {"n_layer", model.layers},
               {"n_embd", model.hidden},
               {"n_head", model.heads},
               {"n_inner", model.ffn},
               {"n_positions", model.positions},
               {"n_ctx", model.positions},
               {"activation_function", setting(settings, "bias_gelu_fusion", true) ? "gelu_new" : "gelu"},
               {"layer_norm_epsilon", setting(settings, "norm_epsilon", 1e-5)},
               {"resid_pdrop", setting(settings, "hidden_dropout", 0.1)},
               {"embd_pdrop", setting(settings, "hidden_dropout", 0.1)},
               {"attn_pdrop", setting(settings, "attention_dropout", 0.1)}};
  // Otherwise transformers takes GPT-2's own end of text, which a smaller vocabulary does not have.
  if (model.vocabulary <= 50256) text.update({{"bos_token_id", nullptr}, {"eos_token_id", nullptr}});
  return text;
}

std::pair<const char*, const char*> llama_names(HfFamily family) {
  switch (family) {
    case HfFamily::mistral:
      return {"mistral", "MistralForCausalLM"};
    case HfFamily::qwen2:
      return {"qwen2", "Qwen2ForCausalLM"};
    case HfFamily::qwen3:
      return {"qwen3", "Qwen3ForCausalLM"};
    default:
      return {"llama", "LlamaForCausalLM"};
  }
}

json llama_text(const HfModel& model, const json& settings) {
  const auto [type, architecture] = llama_names(model.family);
  json text = {{"architectures", {architecture}},
               {"model_type", type},
               {"num_hidden_layers", model.layers},
               {"hidden_size", model.hidden},
               {"intermediate_size", model.ffn},
               {"num_attention_heads", model.heads},
               {"num_key_value_heads", model.groups},
               {"head_dim", model.kv_channels},
               {"max_position_embeddings", model.positions},
               {"hidden_act", "silu"},
               {"rms_norm_eps", setting(settings, "norm_epsilon", 1e-5)},
               {"attention_dropout", setting(settings, "attention_dropout", 0.0)},
               {"rope_theta", setting(settings, "rotary_base", 10000.0)},
               {"rope_parameters", rope_parameters(settings)}};
  // Releases of transformers before rope_parameters read this.
  if (text["rope_parameters"]["rope_type"] != "default") text["rope_scaling"] = text["rope_parameters"];
  if (model.family == HfFamily::llama) {
    text["attention_bias"] = model.linear_bias;
    text["mlp_bias"] = model.linear_bias;
  }
  add_windows(model, windows_of(settings, model.layers), text);
  return text;
}

}  // namespace

HfModel model_of_checkpoint(const CheckpointInfo& info) {
  const json settings = json::parse(info.config);
  const Tensors tensors(info);
  const std::string where = printable(info.path.string(), 4096);
  const std::string first = "decoder.layers.0.";
  HfModel model;
  model.vocabulary = tensors.size("embedding.word_embeddings.weight", 0);
  model.hidden = tensors.size("embedding.word_embeddings.weight", 1);
  model.layers = tensors.layers();
  model.heads = setting<int64_t>(settings, "num_attention_heads", 0);
  if (model.heads < 1)
    throw checkpoint_error({.what = "its settings lack num_attention_heads", .where = where});
  const int64_t attention = tensors.size(first + "self_attention.linear_proj.weight", 1);
  const int64_t qkv_rows = tensors.size(first + "self_attention.linear_qkv.weight", 0);
  model.kv_channels = attention / model.heads;
  if (model.kv_channels < 1 || attention % model.heads != 0 ||
      (qkv_rows - attention) % (2 * model.kv_channels) != 0) {
    throw checkpoint_error(
        {.what = fmt::format("{} heads do not fit the attention's shapes", model.heads), .where = where});
  }
  model.groups = (qkv_rows - attention) / (2 * model.kv_channels);
  model.ffn = tensors.size(first + "mlp.linear_fc2.weight", 1);
  model.tied = !tensors.has("output_layer.weight");
  model.linear_bias = tensors.has(first + "mlp.linear_fc1.bias");
  model.qkv_bias = !model.linear_bias && tensors.has(first + "self_attention.linear_qkv.bias");
  model.positions =
      tensors.has("embedding.position_embeddings.weight")
          ? tensors.size("embedding.position_embeddings.weight", 0)
          : setting(settings, "max_position_embeddings", setting<int64_t>(settings, "seq_length", 2048));
  reject_inexpressible(settings, where);
  model.family = family_of(settings, tensors, model, where);
  return model;
}

std::string hf_config_text(const HfModel& model, const std::string& settings_text, Dtype dtype) {
  const json settings = json::parse(settings_text);
  json text = model.family == HfFamily::gpt2 ? gpt2_text(model, settings) : llama_text(model, settings);
  const char* const type = dtype == Dtype::bf16 ? "bfloat16" : dtype == Dtype::f16 ? "float16" : "float32";
  text.update({{"vocab_size", model.vocabulary},
               {"tie_word_embeddings", model.tied},
               {"initializer_range", setting(settings, "init_method_std", 0.02)},
               {"dtype", type},
               {"torch_dtype", type}});
  return text.dump(2) + "\n";
}

}  // namespace teratron
