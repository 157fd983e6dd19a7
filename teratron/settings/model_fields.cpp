#include "teratron/settings/model_fields.h"

#include <algorithm>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/attention_windows.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

using nlohmann::json;

namespace {

void say_windows_plainly(Arguments& a) {
  if (!a.num_layers || !a.window_size || !is_window_size(*a.window_size)) return;
  if (a.window_attn_skip_freq && !is_window_pattern(*a.window_attn_skip_freq, *a.num_layers)) return;
  const std::vector<int64_t> windows =
      attention_windows({a.window_size, a.window_attn_skip_freq}, *a.num_layers);
  const int64_t widest = windows.empty() ? 0 : *std::ranges::max_element(windows);
  a.window_size.reset();
  a.window_attn_skip_freq.reset();
  if (widest == 0) return;
  a.window_size = fmt::format("{},0", widest - 1);  // no query sees what comes after it
  if (std::ranges::find(windows, 0) == windows.end()) return;
  std::vector<int> windowed;
  for (const int64_t window : windows) windowed.push_back(window > 0 ? 1 : 0);
  a.window_attn_skip_freq = fmt::format("[{}]", fmt::join(windowed, ","));
}

void say_plainly(Arguments& a) {
  if (a.num_query_groups == a.num_attention_heads) a.group_query_attention = false;
  if (a.add_bias_linear) a.add_qkv_bias = false;  // it has one already
  if (a.openai_gelu) a.bias_gelu_fusion = true;   // both are GELU by tanh
  a.openai_gelu = false;
  if (a.rotary_seq_len_interpolation_factor == 1) a.rotary_seq_len_interpolation_factor.reset();
  say_windows_plainly(a);
}

}  // namespace

const std::vector<std::string>& model_fields() {
  static const std::vector<std::string> fields = {"num_layers",
                                                  "hidden_size",
                                                  "ffn_hidden_size",
                                                  "num_attention_heads",
                                                  "group_query_attention",
                                                  "num_query_groups",
                                                  "kv_channels",
                                                  "max_position_embeddings",
                                                  "position_embedding_type",
                                                  "rotary_percent",
                                                  "rotary_base",
                                                  "rotary_interleaved",
                                                  "rotary_seq_len_interpolation_factor",
                                                  "use_rope_scaling",
                                                  "rope_scaling_factor",
                                                  "window_size",
                                                  "window_attn_skip_freq",
                                                  "normalization",
                                                  "norm_epsilon",
                                                  "apply_layernorm_1p",
                                                  "apply_residual_connection_post_layernorm",
                                                  "qk_layernorm",
                                                  "swiglu",
                                                  "geglu",
                                                  "squared_relu",
                                                  "openai_gelu",
                                                  "bias_gelu_fusion",
                                                  "untie_embeddings_and_output_weights",
                                                  "add_bias_linear",
                                                  "add_qkv_bias",
                                                  "tokenizer_vocab_size"};
  return fields;
}

std::string plain_settings(const std::string& config, const std::string& where) {
  std::vector<std::string> unknown;
  Arguments args = arguments_from_json(config, where, &unknown);
  say_plainly(args);
  const json plain = json::parse(to_json(args));
  json settings = json::parse(config);
  for (const std::string& field : model_fields()) {
    if (settings.contains(field) && plain.contains(field)) settings[field] = plain[field];
  }
  for (const Inert& group : inert_model(args)) {
    for (const std::string_view name : group.names) {
      if (group.always) settings.erase(std::string(name));
    }
  }
  return settings.dump();
}

std::vector<std::string> free_fields(const std::string& config, bool finetune) {
  if (json::parse(config).value("position_embedding_type", "learned_absolute") == "learned_absolute")
    return {};
  if (!finetune) return {"max_position_embeddings"};
  return {"max_position_embeddings", "rotary_base", "rotary_seq_len_interpolation_factor", "use_rope_scaling",
          "rope_scaling_factor"};
}

}  // namespace teratron
