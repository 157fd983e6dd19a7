// Model sizes, and what a layer computes and saves for backward.
#include <algorithm>

#include "teratron/settings/attention_windows.h"
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
             a.swiglu || a.geglu ? std::max<int64_t>(64, gated) : *four);
  }
  if (!a.kv_channels && a.num_attention_heads && hidden % *a.num_attention_heads == 0)
    v.derive("kv_channels", a.kv_channels, hidden / *a.num_attention_heads);
}

void derive_lengths(Validation& v) {
  Arguments& a = v.args;
  if (a.seq_length && a.encoder_seq_length && *a.seq_length != *a.encoder_seq_length) {
    v.reject("encoder_seq_length",
             fmt::format("encoder_seq_length = {} and seq_length = {} differ", *a.encoder_seq_length,
                         *a.seq_length),
             "Set only one of them");
  }
  if (!a.seq_length && a.encoder_seq_length) v.derive("seq_length", a.seq_length, a.encoder_seq_length);
  if (!a.seq_length) return;
  if (!a.encoder_seq_length) v.derive("encoder_seq_length", a.encoder_seq_length, a.seq_length);
  if (!a.max_position_embeddings)
    v.derive("max_position_embeddings", a.max_position_embeddings, a.seq_length);
}

void derive_query_groups(Validation& v) {
  Arguments& a = v.args;
  if (!a.attention_head_type) return;
  const bool multiquery = *a.attention_head_type == "multiquery";
  const bool contradicts = multiquery
                               ? v.chosen("num_query_groups") && a.num_query_groups != 1
                               : a.group_query_attention && a.num_query_groups != a.num_attention_heads;
  if (contradicts) {
    v.reject("attention_head_type",
             fmt::format("attention_head_type = {} contradicts num_query_groups = {}", *a.attention_head_type,
                         a.num_query_groups),
             "Set only one of them");
  } else if (multiquery && !a.group_query_attention) {
    v.derive("group_query_attention", a.group_query_attention, true);
  }
}

void check_positions(Validation& v) {
  Arguments& a = v.args;
  if (!a.add_position_embedding && a.position_embedding_type == "learned_absolute") {
    if (v.chosen("position_embedding_type")) {
      v.reject("add_position_embedding",
               "--no-position-embedding contradicts position_embedding_type = learned_absolute",
               "Set only one of them");
    } else {
      v.derive("position_embedding_type", a.position_embedding_type, "none");
    }
  }
  const bool rotary = a.position_embedding_type == "rope" || a.position_embedding_type == "yarn";
  if (!rotary || !a.kv_channels) return;
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

void check_activation(Validation& v) {
  Arguments& a = v.args;
  const int kinds = static_cast<int>(a.swiglu) + static_cast<int>(a.geglu) +
                    static_cast<int>(a.squared_relu) + static_cast<int>(a.openai_gelu) +
                    static_cast<int>(a.relu);
  if (kinds > 1) {
    v.reject("swiglu", "more than one of swiglu, geglu, relu, squared_relu and openai_gelu is set",
             "Set only one of them");
  }
  if (kinds == 0 && !a.add_bias_linear && a.bias_gelu_fusion && !v.chosen("bias_gelu_fusion"))
    v.derive("bias_gelu_fusion", a.bias_gelu_fusion, false);
}

void check_loss_chunks(Validation& v) {
  const Arguments& a = v.args;
  const int64_t rows = a.seq_length.value_or(0) / a.context_parallel_size /
                       (a.sequence_parallel ? a.tensor_model_parallel_size : 1);
  if (a.seq_length && a.loss_chunks > rows) {
    v.reject("loss_chunks", fmt::format("loss_chunks = {}, but a rank has {} positions", a.loss_chunks, rows),
             fmt::format("Use at most {}", rows));
  }
}

}  // namespace

void check_model(Validation& v) {
  Arguments& a = v.args;
  derive_widths(v);
  derive_lengths(v);
  derive_query_groups(v);
  check_positions(v);
  check_windows(v);
  check_activation(v);
  check_loss_chunks(v);
  if (a.recompute_granularity != "full") return;
  if (!a.recompute_method) v.derive("recompute_method", a.recompute_method, "uniform");
  if (!a.recompute_num_layers) v.derive("recompute_num_layers", a.recompute_num_layers, 1);
}

}  // namespace teratron
