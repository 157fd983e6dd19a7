// Checks of what a layer computes and what it keeps for backward.
#include "teratron/base/attention_windows.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

void check_positions(Validation& v) {
  Arguments& a = v.args;
  if (!a.add_position_embedding && a.position_embedding_type == "learned_absolute") {
    if (v.chosen("position_embedding_type")) {
      v.reject("add_position_embedding",
               "--no-position-embedding contradicts position_embedding_type = learned_absolute",
               "Give one of them");
    } else {
      a.position_embedding_type = "none";
      v.derived("position_embedding_type");
    }
  }
  if (a.position_embedding_type != "rope") return;
  if (a.use_rope_scaling && a.rotary_seq_len_interpolation_factor) {
    v.reject("use_rope_scaling", "use_rope_scaling and rotary_seq_len_interpolation_factor are both set",
             "Give one of them");
  }
  if (!a.kv_channels) return;
  const auto rotated = static_cast<int64_t>(static_cast<double>(*a.kv_channels) * a.rotary_percent);
  if (rotated > 0 && rotated % 2 == 0) return;
  v.reject("rotary_percent",
           fmt::format(
               "kv_channels = {} with rotary_percent = {} rotates {} channels. Channels are rotated in pairs",
               *a.kv_channels, a.rotary_percent, rotated),
           "Use a head width and share that give an even number above 0");
}

void check_windows(Validation& v) {
  const Arguments& a = v.args;
  if (!a.window_size) return;
  if (!is_window_size(*a.window_size)) {
    v.reject("window_size",
             fmt::format("window_size = '{}' is no pair of numbers", printable(*a.window_size)),
             "Write the keys seen before and behind the query, such as 127,0, or -1 for all");
  }
  if (!a.window_attn_skip_freq || !a.num_layers) return;
  if (is_window_pattern(*a.window_attn_skip_freq, *a.num_layers)) return;
  v.reject(
      "window_attn_skip_freq",
      fmt::format("window_attn_skip_freq = '{}' is neither a number above 0 nor a list of num_layers = {}",
                  printable(*a.window_attn_skip_freq), *a.num_layers),
      "Write N for a full layer after every N - 1 with the window, or one 0 or 1 per layer as in [1,1,0]");
}

void check_activation(Validation& v) {
  Arguments& a = v.args;
  const int kinds = static_cast<int>(a.swiglu) + static_cast<int>(a.geglu) +
                    static_cast<int>(a.squared_relu) + static_cast<int>(a.openai_gelu);
  if (kinds > 1) {
    v.reject("swiglu", "more than one of swiglu, geglu, squared_relu and openai_gelu is set",
             "Give one of them");
  }
  if (kinds > 0 || a.add_bias_linear || !a.bias_gelu_fusion || v.chosen("bias_gelu_fusion")) return;
  a.bias_gelu_fusion = false;
  v.derived("bias_gelu_fusion");
}

void check_recompute(Validation& v) {
  Arguments& a = v.args;
  const bool full = a.recompute_granularity == "full";
  if (!full) {
    if (a.recompute_granularity && a.recompute_method) {
      v.reject("recompute_method", "recompute_method needs recompute_granularity = full, not selective",
               "Leave one of them out");
    } else if (a.recompute_method) {
      v.note("--recompute-method has no effect without --recompute-granularity full");
    }
    if (a.recompute_num_layers) {
      v.note("--recompute-num-layers has no effect without --recompute-granularity full");
    }
  }
  if (full && !a.recompute_method) {
    a.recompute_method = "uniform";
    v.derived("recompute_method");
  }
  if (full && !a.recompute_num_layers) {
    a.recompute_num_layers = 1;
    v.derived("recompute_num_layers");
  }
  if (!a.distribute_saved_activations) return;
  if (!full || a.tensor_model_parallel_size == 1) {
    v.reject("distribute_saved_activations",
             "distribute_saved_activations needs recompute_granularity = full and tensor parallelism",
             "Give --recompute-granularity full and --tensor-model-parallel-size > 1, or leave it out");
  } else if (a.sequence_parallel) {
    v.reject(
        "distribute_saved_activations",
        "distribute_saved_activations contradicts sequence_parallel, which has cut the activations already",
        "Give one of them");
  } else if (a.seq_length) {
    v.divisible({.name = "seq_length",
                 .value = *a.seq_length,
                 .by = "tensor_model_parallel_size",
                 .divisor = a.tensor_model_parallel_size,
                 .reason = "Each tensor-parallel rank keeps its part of the saved sequence"});
  }
}

void check_loss_chunks(Validation& v) {
  const Arguments& a = v.args;
  const int64_t rows = a.seq_length.value_or(0) / (a.sequence_parallel ? a.tensor_model_parallel_size : 1);
  if (a.seq_length && a.loss_chunks > rows) {
    v.reject("loss_chunks", fmt::format("loss_chunks = {}, but a rank has {} positions", a.loss_chunks, rows),
             fmt::format("Use at most {}", rows));
  }
}

void check_half_precision(Validation& v) {
  const Arguments& a = v.args;
  if (a.fp32_residual_connection && !a.fp16 && !a.bf16) {
    v.note("--fp32-residual-connection has no effect without --bf16 or --fp16");
  }
  if (a.fp16_lm_cross_entropy && !a.fp16) {
    v.reject("fp16_lm_cross_entropy", "fp16_lm_cross_entropy needs fp16", "Add --fp16 or leave it out");
  }
}

}  // namespace

void check_layers(Validation& v) {
  check_positions(v);
  check_windows(v);
  check_activation(v);
  check_recompute(v);
  check_loss_chunks(v);
  check_half_precision(v);
}

}  // namespace teratron
