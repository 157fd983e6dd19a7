// FP8: sizes of the GEMMs beside those in setting_relations.cpp.
#include <algorithm>

#include "teratron/settings/checks/formula.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

constexpr int64_t alignment = 16;

// A size that formulas of settings do not give. `flag`: to leave out instead.
struct Size {
  std::string_view blamed;
  std::string_view what;
  std::optional<int64_t> value;
  std::string_view flag;
};

void check_size(Validation& v, const Size& size) {
  if (!size.value || *size.value % alignment == 0) return;
  v.reject(size.blamed,
           fmt::format("{} = {} is not a multiple of {}, which FP8 GEMMs require", size.what, *size.value,
                       alignment),
           fmt::format("Choose sizes that make it {}, or leave {} out",
                       multiples_text(*size.value, alignment), size.flag));
}

void check_qkv_width(Validation& v) {
  const Arguments& a = v.args;
  if (!a.num_attention_heads) return;
  // A key/value head may be on several ranks.
  const auto kv_heads = product(2, std::max(query_groups(a), a.tensor_model_parallel_size));
  const int64_t heads = *a.num_attention_heads;
  if (!kv_heads || *kv_heads > INT64_MAX - heads) return;
  check_size(
      v, {"kv_channels", "width of queries, keys and values / tensor_model_parallel_size",
          quotient(product(heads + *kv_heads, a.kv_channels), a.tensor_model_parallel_size), "--fp8-format"});
}

void check_latents(Validation& v) {
  const Arguments& a = v.args;
  const auto of_rank = [&](int64_t channels) {
    return quotient(product(a.num_attention_heads, channels), a.tensor_model_parallel_size);
  };
  check_size(v, {"q_lora_rank", "q_lora_rank", a.q_lora_rank, "--fp8-format"});
  check_size(v, {"kv_lora_rank", "kv_lora_rank", a.kv_lora_rank, "--fp8-format"});
  check_size(v, {"kv_lora_rank", "kv_lora_rank + qk_pos_emb_head_dim", a.kv_lora_rank + a.qk_pos_emb_head_dim,
                 "--fp8-format"});
  check_size(v, {"qk_head_dim", "width of queries / tensor_model_parallel_size",
                 of_rank(a.qk_head_dim + a.qk_pos_emb_head_dim), "--fp8-format"});
  check_size(v, {"v_head_dim", "width of keys and values / tensor_model_parallel_size",
                 of_rank(a.qk_head_dim + a.v_head_dim), "--fp8-format"});
  check_size(v, {"v_head_dim", "width of values / tensor_model_parallel_size", of_rank(a.v_head_dim),
                 "--fp8-format"});
}

// Tokens per chunk of the loss: all but the last, and the last if smaller.
std::vector<std::optional<int64_t>> chunk_sizes(const Arguments& a) {
  const int64_t ranks = a.sequence_parallel ? a.tensor_model_parallel_size : 1;
  const std::optional<int64_t> rows = quotient(quotient(a.seq_length, a.context_parallel_size), ranks);
  if (!a.fp8_output_proj || a.loss_chunks == 1 || !rows || a.loss_chunks > *rows) return {};
  const int64_t chunk = (*rows - 1) / a.loss_chunks + 1, last = (*rows - 1) % chunk + 1;
  const auto tokens = [&](int64_t size) { return product(product(size, ranks), a.micro_batch_size); };
  if (last == chunk) return {tokens(chunk)};
  return {tokens(chunk), tokens(last)};
}

}  // namespace

void check_fp8(Validation& v) {
  const Arguments& a = v.args;
  if (!a.fp8) return;
  a.multi_latent_attention ? check_latents(v) : check_qkv_width(v);
  for (const std::optional<int64_t>& tokens : chunk_sizes(a))
    check_size(v, {"loss_chunks", "tokens per chunk of the loss", tokens, "--fp8-output-proj"});
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
