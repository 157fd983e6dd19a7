// Checks of the model's sizes and of the layout of ranks.
#include <algorithm>

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
    a.ffn_hidden_size =
        a.swiglu || a.geglu
            ? std::max<int64_t>(64, static_cast<int64_t>(static_cast<double>(*four) * 2 / 3 / 64) * 64)
            : *four;
    v.derived("ffn_hidden_size");
  }
  if (a.kv_channels || !a.num_attention_heads) return;
  const bool even =
      v.divisible({.name = "hidden_size",
                   .value = hidden,
                   .by = "num_attention_heads",
                   .divisor = *a.num_attention_heads,
                   .reason = "The hidden state is split into the heads unless kv_channels is given"});
  if (!even) return;
  a.kv_channels = hidden / *a.num_attention_heads;
  v.derived("kv_channels");
}

void derive_lengths(Validation& v) {
  Arguments& a = v.args;
  if (a.seq_length && a.encoder_seq_length && *a.seq_length != *a.encoder_seq_length) {
    v.reject("encoder_seq_length",
             fmt::format("encoder_seq_length = {} and seq_length = {} differ", *a.encoder_seq_length,
                         *a.seq_length),
             "Give one of them");
  }
  if (!a.seq_length && a.encoder_seq_length) {
    a.seq_length = a.encoder_seq_length;
    v.derived("seq_length");
  }
  if (!a.encoder_seq_length && a.seq_length) {
    a.encoder_seq_length = a.seq_length;
    v.derived("encoder_seq_length");
  }
  if (!a.max_position_embeddings && a.seq_length) {
    a.max_position_embeddings = a.seq_length;
    v.derived("max_position_embeddings");
  }
  if (a.seq_length && *a.seq_length > *a.max_position_embeddings) {
    v.reject(
        "seq_length",
        fmt::format("seq_length = {} is longer than max_position_embeddings = {}", *a.seq_length,
                    *a.max_position_embeddings),
        fmt::format("Use seq_length <= {} or raise max_position_embeddings", *a.max_position_embeddings));
  }
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
             "Give one of them");
  } else if (multiquery && !a.group_query_attention) {
    a.group_query_attention = true;
    v.derived("group_query_attention");
  }
}

void check_heads(Validation& v) {
  const Arguments& a = v.args;
  if (!a.num_attention_heads) return;
  const int64_t tp = a.tensor_model_parallel_size;
  v.divisible({.name = "num_attention_heads",
               .value = *a.num_attention_heads,
               .by = "tensor_model_parallel_size",
               .divisor = tp,
               .reason = "Heads are split over tensor-parallel ranks"});
  if (!a.group_query_attention) return;
  v.divisible({.name = "num_attention_heads",
               .value = *a.num_attention_heads,
               .by = "num_query_groups",
               .divisor = a.num_query_groups,
               .reason = "Each group serves the same number of query heads"});
  v.divisible({.name = "num_query_groups",
               .value = a.num_query_groups,
               .by = "tensor_model_parallel_size",
               .divisor = tp,
               .reason = "Key and value heads are split over tensor-parallel ranks"});
}

// The experts are laid over the same ranks in a view of their own: expert tensor x expert x pipeline x data.
void check_experts(Validation& v, int64_t world_size) {
  const Arguments& a = v.args;
  const int64_t ep = a.expert_model_parallel_size;
  if (!a.num_experts) {
    if (ep > 1)
      v.reject("expert_model_parallel_size", "expert_model_parallel_size > 1 without experts",
               "Give --num-experts");
    return;
  }
  v.divisible({.name = "num_experts",
               .value = *a.num_experts,
               .by = "expert_model_parallel_size",
               .divisor = ep,
               .reason = "Every rank of the expert group holds the same number of experts"});
  if (a.moe_router_topk > *a.num_experts) {
    v.reject(v.chosen("moe_router_topk") ? "moe_router_topk" : "num_experts",
             fmt::format("num_experts = {}, but every token goes to moe_router_topk = {} of them",
                         *a.num_experts, a.moe_router_topk),
             fmt::format("Use --moe-router-topk {} or fewer, or more experts", *a.num_experts));
  }
  const int64_t etp = a.expert_tensor_parallel_size.value_or(a.tensor_model_parallel_size);
  const std::optional<int64_t> cut = product(etp, ep);
  const std::optional<int64_t> ranks = cut ? product(*cut, a.pipeline_model_parallel_size) : std::nullopt;
  if (ranks && world_size % *ranks == 0) return;
  v.reject("expert_model_parallel_size",
           fmt::format("{} ranks cannot be divided into expert tensor {} x expert {} x pipeline {} ranks",
                       world_size, etp, ep, a.pipeline_model_parallel_size),
           fmt::format("Choose sizes whose product is one of {}", divisors_text(world_size)));
}

void check_sequence_cuts(Validation& v) {
  const Arguments& a = v.args;
  const int64_t tp = a.tensor_model_parallel_size;
  const int64_t cp = a.context_parallel_size;
  if (a.sequence_parallel && tp == 1)
    v.note("--sequence-parallel has no effect at tensor_model_parallel_size 1");
  if (!a.seq_length) return;
  if (cp > 1 && cp <= INT64_MAX / 2) {
    v.divisible({.name = "seq_length",
                 .value = *a.seq_length,
                 .by = "2 * context_parallel_size",
                 .divisor = 2 * cp,
                 .reason = "Each context-parallel rank holds two pieces of the sequence"});
  }
  if (a.sequence_parallel && tp > 1 && *a.seq_length % cp == 0) {
    v.divisible(
        {.name = "seq_length",
         .value = *a.seq_length / cp,
         .by = "tensor_model_parallel_size",
         .divisor = tp,
         .reason = "Sequence parallelism cuts the sequence (of a context-parallel rank) over these ranks"});
  }
}

}  // namespace

void check_model(Validation& v) {
  Arguments& a = v.args;
  derive_widths(v);
  derive_lengths(v);
  derive_query_groups(v);
  check_layers(v);
  if (a.hidden_dropout >= 1)
    v.reject("hidden_dropout", "hidden_dropout = 1 drops everything", "Use a value below 1");
  if (a.attention_dropout >= 1) {
    v.reject("attention_dropout", "attention_dropout = 1 drops everything", "Use a value below 1");
  }
}

void check_parallel(Validation& v, int64_t world_size) {
  Arguments& a = v.args;
  check_heads(v);
  if (a.ffn_hidden_size) {
    v.divisible({.name = "ffn_hidden_size",
                 .value = *a.ffn_hidden_size,
                 .by = "tensor_model_parallel_size",
                 .divisor = a.tensor_model_parallel_size,
                 .reason = "The MLP is split over tensor-parallel ranks"});
  }
  if (a.padded_vocab_size) {
    v.divisible({.name = "padded_vocab_size",
                 .value = *a.padded_vocab_size,
                 .by = "tensor_model_parallel_size",
                 .divisor = a.tensor_model_parallel_size,
                 .reason = "The embedding's rows are split over tensor-parallel ranks"});
  }
  check_sequence_cuts(v);
  check_experts(v, world_size);
  a.world_size = world_size;
  const std::optional<int64_t> model_ranks =
      product(a.tensor_model_parallel_size, a.pipeline_model_parallel_size);
  const std::optional<int64_t> ranks =
      model_ranks ? product(*model_ranks, a.context_parallel_size) : std::nullopt;
  if (!ranks || world_size < 1 || world_size % *ranks != 0) {
    v.reject(
        "tensor_model_parallel_size",
        fmt::format(
            "{} ranks cannot be divided into replicas of tensor {} x pipeline {} x context {} = {} ranks",
            world_size, a.tensor_model_parallel_size, a.pipeline_model_parallel_size, a.context_parallel_size,
            ranks ? std::to_string(*ranks) : "too many"),
        ranks ? fmt::format("Start {} ranks, or choose sizes whose product is one of {}",
                            multiples_text(world_size, *ranks), divisors_text(world_size))
              : "Choose smaller sizes");
    return;
  }
  a.data_parallel_size = world_size / *ranks;
  v.derived("world_size");
  v.derived("data_parallel_size");
  // Megatron-LM wants overlap_grad_reduce beside it, which is always so here.
  if (a.overlap_param_gather && !a.use_distributed_optimizer) {
    v.reject("overlap_param_gather", "overlap_param_gather needs use_distributed_optimizer",
             "Add --use-distributed-optimizer");
  }
}

}  // namespace teratron
