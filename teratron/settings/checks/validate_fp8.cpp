// Checks of --fp8-format and what belongs to it.
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

constexpr int64_t granule = 16;

struct Size {
  std::string_view name;  // of the setting to blame
  std::string what;
  std::optional<int64_t> value;
  std::string_view asks = "--fp8-format";  // the flag to leave out instead
};

void check_size(Validation& v, const Size& size) {
  if (!size.value || *size.value % granule == 0) return;
  v.reject(size.name,
           fmt::format("{} = {} is no multiple of {}, as the factors of FP8 products must be", size.what,
                       *size.value, granule),
           fmt::format("Choose sizes for which it is {}, or leave {} out",
                       multiples_text(*size.value, granule), size.asks));
}

// What a rank holds of it; nothing where that is no whole number, which others refuse.
std::optional<int64_t> part(std::optional<int64_t> whole, int64_t ranks) {
  if (!whole || ranks < 1 || *whole % ranks != 0) return std::nullopt;
  return *whole / ranks;
}

std::optional<int64_t> times(std::optional<int64_t> a, std::optional<int64_t> b) {
  return a && b ? product(*a, *b) : std::nullopt;
}

void check_sizes(Validation& v) {
  const Arguments& a = v.args;
  const int64_t tp = a.tensor_model_parallel_size;
  check_size(v, {"hidden_size", "hidden_size", a.hidden_size});
  check_size(
      v, {"ffn_hidden_size", "ffn_hidden_size / tensor_model_parallel_size", part(a.ffn_hidden_size, tp)});
  if (a.num_attention_heads) {
    const auto kv_heads = times(2, query_groups(a));
    const auto heads = a.num_attention_heads;
    check_size(v, {"kv_channels", "num_attention_heads * kv_channels / tensor_model_parallel_size",
                   part(times(heads, a.kv_channels), tp)});
    if (kv_heads && *kv_heads <= INT64_MAX - *heads) {
      check_size(v, {"kv_channels", "width of queries, keys and values / tensor_model_parallel_size",
                     part(times(*heads + *kv_heads, a.kv_channels), tp)});
    }
  }
  check_size(v, {"micro_batch_size", "seq_length / context_parallel_size * micro_batch_size",
                 times(part(a.seq_length, a.context_parallel_size), a.micro_batch_size)});
}

// Tokens of a chunk of the loss: of those before the last, and of the last.
std::vector<std::optional<int64_t>> chunk_sizes(const Arguments& a) {
  const int64_t ranks = a.sequence_parallel ? a.tensor_model_parallel_size : 1;
  const std::optional<int64_t> rows = part(part(a.seq_length, a.context_parallel_size), ranks);
  if (a.loss_chunks == 1 || !rows || a.loss_chunks > *rows) return {};
  const int64_t chunk = (*rows - 1) / a.loss_chunks + 1, last = (*rows - 1) % chunk + 1;
  const auto tokens = [&](int64_t size) { return times(times(size, ranks), a.micro_batch_size); };
  if (last == chunk) return {tokens(chunk)};
  return {tokens(chunk), tokens(last)};
}

void check_output_layer(Validation& v) {
  const Arguments& a = v.args;
  constexpr std::string_view flag = "--fp8-output-proj";
  if (a.padded_vocab_size) {
    check_size(v, {"padded_vocab_size", "padded_vocab_size / tensor_model_parallel_size",
                   part(a.padded_vocab_size, a.tensor_model_parallel_size), flag});
  } else {
    check_size(v, {"make_vocab_size_divisible_by", "make_vocab_size_divisible_by",
                   a.make_vocab_size_divisible_by, flag});
  }
  for (const std::optional<int64_t>& tokens : chunk_sizes(a)) {
    check_size(v, {"loss_chunks", "tokens of a chunk of the loss", tokens, flag});
  }
}

void check_ends(Validation& v) {
  const Arguments& a = v.args;
  if (!a.first_last_layers_bf16) {
    for (const std::string_view name : {"num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"}) {
      if (v.chosen(name))
        v.note(fmt::format("{} has no effect without --first-last-layers-bf16", flag_of(name)));
    }
    return;
  }
  if (!a.num_layers) return;
  const int64_t start = a.num_layers_at_start_in_bf16, end = a.num_layers_at_end_in_bf16;
  if (start < *a.num_layers && end < *a.num_layers - start) return;
  v.reject(
      "first_last_layers_bf16",
      fmt::format("{} layers at the start and {} at the end in bf16 leave none of num_layers = {} in FP8",
                  start, end, *a.num_layers),
      "Keep fewer of them in bf16, or leave --fp8-format out");
}

}  // namespace

void check_fp8(Validation& v) {
  const Arguments& a = v.args;
  if (!a.fp8) {
    for (const std::string_view name :
         {"fp8_recipe", "fp8_margin", "fp8_amax_history_len", "fp8_amax_compute_algo", "fp8_wgrad",
          "fp8_output_proj", "first_last_layers_bf16", "num_layers_at_start_in_bf16",
          "num_layers_at_end_in_bf16"}) {
      if (v.chosen(name)) v.note(fmt::format("{} has no effect without --fp8-format", flag_of(name)));
    }
    return;
  }
  if (!a.bf16) {
    v.reject("fp8", fmt::format("fp8 = {} needs bf16: only the products of linear layers are in FP8", *a.fp8),
             "Add --bf16");
  }
  if (a.fp8_recipe == "tensorwise") {
    for (const std::string_view name : {"fp8_margin", "fp8_amax_history_len", "fp8_amax_compute_algo"}) {
      if (v.chosen(name)) v.note(fmt::format("{} has no effect with --fp8-recipe tensorwise", flag_of(name)));
    }
  }
  check_sizes(v);
  if (a.fp8_output_proj) check_output_layer(v);
  check_ends(v);
}

}  // namespace teratron
