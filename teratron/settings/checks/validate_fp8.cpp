// FP8: sizes of the GEMMs.
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

constexpr int64_t alignment = 16;

struct Size {
  std::string_view name;  // the setting to blame
  std::string what;
  std::optional<int64_t> value;
  std::string_view flag = "--fp8-format";  // to leave out instead
};

void check_size(Validation& v, const Size& size) {
  if (!size.value || *size.value % alignment == 0) return;
  v.reject(size.name,
           fmt::format("{} = {} is not a multiple of {}, which FP8 GEMMs require", size.what, *size.value,
                       alignment),
           fmt::format("Choose sizes that make it {}, or leave {} out",
                       multiples_text(*size.value, alignment), size.flag));
}

// Size per rank; nullopt if not divisible, which is reported elsewhere.
std::optional<int64_t> part(std::optional<int64_t> whole, int64_t ranks) {
  if (!whole || ranks < 1 || *whole % ranks != 0) return std::nullopt;
  return *whole / ranks;
}

void check_gemm_sizes(Validation& v) {
  const Arguments& a = v.args;
  const int64_t tp = a.tensor_model_parallel_size;
  check_size(v, {"hidden_size", "hidden_size", a.hidden_size});
  check_size(
      v, {"ffn_hidden_size", "ffn_hidden_size / tensor_model_parallel_size", part(a.ffn_hidden_size, tp)});
  if (a.num_attention_heads) {
    const auto kv_heads = product(2, query_groups(a));
    const auto heads = a.num_attention_heads;
    check_size(v, {"kv_channels", "num_attention_heads * kv_channels / tensor_model_parallel_size",
                   part(product(heads, a.kv_channels), tp)});
    if (kv_heads && *kv_heads <= INT64_MAX - *heads) {
      check_size(v, {"kv_channels", "width of queries, keys and values / tensor_model_parallel_size",
                     part(product(*heads + *kv_heads, a.kv_channels), tp)});
    }
  }
  check_size(v, {"micro_batch_size", "seq_length / context_parallel_size * micro_batch_size",
                 product(part(a.seq_length, a.context_parallel_size), a.micro_batch_size)});
}

// Numbers of tokens per expert need not be multiples.
void check_expert_sizes(Validation& v) {
  const Arguments& a = v.args;
  const int64_t tp = a.tensor_model_parallel_size, etp = a.expert_tensor_parallel_size.value_or(tp);
  if (a.moe_ffn_hidden_size || etp != tp) {
    const std::optional<int64_t> width = a.moe_ffn_hidden_size ? a.moe_ffn_hidden_size : a.ffn_hidden_size;
    check_size(
        v, {"moe_ffn_hidden_size", "moe_ffn_hidden_size / expert_tensor_parallel_size", part(width, etp)});
  }
  check_size(v, {"moe_shared_expert_intermediate_size",
                 "moe_shared_expert_intermediate_size / tensor_model_parallel_size",
                 part(a.moe_shared_expert_intermediate_size, tp)});
}

// Tokens per chunk of the loss: all but the last, and the last if smaller.
std::vector<std::optional<int64_t>> chunk_sizes(const Arguments& a) {
  const int64_t ranks = a.sequence_parallel ? a.tensor_model_parallel_size : 1;
  const std::optional<int64_t> rows = part(part(a.seq_length, a.context_parallel_size), ranks);
  if (a.loss_chunks == 1 || !rows || a.loss_chunks > *rows) return {};
  const int64_t chunk = (*rows - 1) / a.loss_chunks + 1, last = (*rows - 1) % chunk + 1;
  const auto tokens = [&](int64_t size) { return product(product(size, ranks), a.micro_batch_size); };
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
    check_size(v, {"loss_chunks", "tokens per chunk of the loss", tokens, flag});
  }
}

}  // namespace

void check_fp8(Validation& v) {
  const Arguments& a = v.args;
  if (!a.fp8) return;
  check_gemm_sizes(v);
  if (a.num_experts) check_expert_sizes(v);
  if (a.fp8_output_proj) check_output_layer(v);
  const int64_t start = a.num_layers_at_start_in_bf16, end = a.num_layers_at_end_in_bf16;
  if (!a.first_last_layers_bf16 || !a.num_layers || (start < *a.num_layers && end < *a.num_layers - start))
    return;
  v.reject(
      "first_last_layers_bf16",
      fmt::format("{} layers at the start and {} at the end in bf16 leave none of num_layers = {} in FP8",
                  start, end, *a.num_layers),
      "Keep fewer layers in bf16, or leave --fp8-format out");
}

}  // namespace teratron
