// Model sizes, and what a layer computes and saves for backward.
#include <algorithm>

#include "teratron/settings/attention_windows.h"
#include "teratron/settings/checks/formula.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

void derive_widths(Validation& v) {
  Arguments& a = v.args;
  if (!a.hidden_size) return;
  const int64_t hidden = *a.hidden_size;
  if (!a.ffn_hidden_size) {
    const std::optional<int64_t> four = product(4, hidden);
    if (!four)
      return v.reject("hidden_size", fmt::format("hidden_size = {} is too large", hidden),
                      "Use a smaller one");
    const auto gated = static_cast<int64_t>(static_cast<double>(*four) * 2 / 3 / 64) * 64;
    v.derive("ffn_hidden_size", a.ffn_hidden_size,
             a.swiglu || a.geglu || a.quick_geglu ? std::max<int64_t>(64, gated) : *four);
  }
  if (!a.kv_channels && a.num_attention_heads && hidden % *a.num_attention_heads == 0)
    v.derive("kv_channels", a.kv_channels, hidden / *a.num_attention_heads);
}

void derive_lengths(Validation& v) {
  Arguments& a = v.args;
  if (!a.seq_length && a.encoder_seq_length) v.derive("seq_length", a.seq_length, a.encoder_seq_length);
  if (!a.seq_length) return;
  if (!a.encoder_seq_length) v.derive("encoder_seq_length", a.encoder_seq_length, a.seq_length);
  if (!a.max_position_embeddings)
    v.derive("max_position_embeddings", a.max_position_embeddings, a.seq_length);
}

void check_positions(Validation& v) {
  Arguments& a = v.args;
  if (!a.add_position_embedding && !v.chosen("position_embedding_type"))
    v.derive("position_embedding_type", a.position_embedding_type, "none");
  const bool rotary = a.position_embedding_type == "rope" || a.position_embedding_type == "yarn";
  if (!rotary || !a.kv_channels || a.multi_latent_attention) return;
  const auto rotated = static_cast<int64_t>(static_cast<double>(*a.kv_channels) * a.rotary_percent);
  if (rotated > 0 && rotated % 2 == 0) return;
  v.reject("rotary_percent",
           fmt::format("kv_channels = {} with rotary_percent = {} rotates {} channels, which must be pairs",
                       *a.kv_channels, a.rotary_percent, rotated),
           "Use values that give an even number above 0");
}

void check_windows(Validation& v) {
  const Arguments& a = v.args;
  if (!a.window_size) return;
  if (!is_valid_window_size(*a.window_size)) {
    v.reject("window_size",
             fmt::format("window_size = '{}' is not a pair of numbers", printable(*a.window_size)),
             "Give the keys visible before and after the query, such as 127,0, or -1 for all");
  }
  if (!a.window_attn_skip_freq || !a.num_layers) return;
  if (is_valid_window_pattern(*a.window_attn_skip_freq, *a.num_layers)) return;
  v.reject(
      "window_attn_skip_freq",
      fmt::format("window_attn_skip_freq = '{}' is neither a number above 0 nor a list of num_layers = {}",
                  printable(*a.window_attn_skip_freq), *a.num_layers),
      "Give N for no window in every N-th layer, or a 0 or 1 per layer such as [1,1,0]");
}

void check_rotations(Validation& v) {
  const Arguments& a = v.args;
  if (a.no_rope_freq && a.num_layers && !parse_no_rope_layers(*a.no_rope_freq, *a.num_layers)) {
    v.reject("no_rope_freq",
             fmt::format("no_rope_freq = '{}' is neither a number above 0 nor a list of num_layers = {}",
                         printable(*a.no_rope_freq), *a.num_layers),
             "Give N for no rotation in every N-th layer, or a 0 or 1 per layer such as [0,0,1]");
  }
  if (a.longrope_short_factors.empty() || !a.kv_channels) return;
  const auto pairs = static_cast<int64_t>(static_cast<double>(*a.kv_channels) * a.rotary_percent) / 2;
  for (const auto& [name, factors] : {std::pair("longrope_short_factors", &a.longrope_short_factors),
                                      std::pair("longrope_long_factors", &a.longrope_long_factors)}) {
    const bool positive = std::ranges::all_of(*factors, [](double factor) { return factor > 0.0; });
    if (positive && (factors->empty() || std::ssize(*factors) == pairs)) continue;
    v.reject(name,
             fmt::format("{} has {} numbers for {} rotated pairs of channels", name, factors->size(), pairs),
             "Give a number above 0 for each pair");
  }
}

void derive_gelu(Validation& v) {
  Arguments& a = v.args;
  const bool gelu = !a.swiglu && !a.geglu && !a.quick_geglu && !a.squared_relu && !a.openai_gelu && !a.relu;
  if (gelu && !a.add_bias_linear && a.bias_gelu_fusion && !v.chosen("bias_gelu_fusion"))
    v.derive("bias_gelu_fusion", a.bias_gelu_fusion, false);
}

}  // namespace

void check_model(Validation& v) {
  Arguments& a = v.args;
  derive_widths(v);
  derive_lengths(v);
  if (a.attention_head_type == "multiquery" && !a.group_query_attention)
    v.derive("group_query_attention", a.group_query_attention, true);
  check_positions(v);
  check_windows(v);
  check_rotations(v);
  derive_gelu(v);
  if (a.recompute_granularity != "full") return;
  if (!a.recompute_method) v.derive("recompute_method", a.recompute_method, "uniform");
  if (!a.recompute_num_layers) v.derive("recompute_num_layers", a.recompute_num_layers, 1);
}

}  // namespace teratron
