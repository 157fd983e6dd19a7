// Relations between two settings, as rows of a table.
#include <compare>

#include "teratron/settings/checks/conditions.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

enum class Relation : uint8_t {
  excludes,      // of two conditions only one may hold
  needs,         // the first condition needs the other
  demands,       // same, but the other setting is blamed
  divisible_by,  // the rest compare the values of two settings that are set
  at_most,
  at_least,
  less_than,
  greater_than,
};
using enum Relation;

struct Rule {
  std::string_view subject;  // conditions (find_held), or the name of a setting
  Relation relation;
  std::string_view other;
  std::string_view reason = {};
  std::string_view when = {};  // a condition; "without --x" negates
};

// Relative ones have no last position.
constexpr std::string_view absolute_positions =
    "--position-embedding-type learned_absolute|rope|yarn|alibi|none";
constexpr std::string_view tp = "tensor_model_parallel_size";
constexpr std::string_view split_paths = "--train-data-path or --valid-data-path or --test-data-path";
constexpr std::string_view per_split_paths =
    "--train-data-path or --valid-data-path or --test-data-path or --per-split-data-args-path";

// clang-format off
constexpr Rule rules[] = {
    // Model
    {"hidden_size", divisible_by, "num_attention_heads", "It is split into heads unless kv_channels is given", "without --kv-channels"},
    {"num_attention_heads", divisible_by, tp, "Heads are split over tensor-parallel ranks"},
    {"num_attention_heads", divisible_by, "num_query_groups", "Groups have the same number of query heads", "--group-query-attention"},
    {"num_query_groups", divisible_by, tp, "Key/value heads are split over tensor-parallel ranks", "--group-query-attention"},
    {"ffn_hidden_size", divisible_by, tp, "The MLP is split over tensor-parallel ranks"},
    {"padded_vocab_size", divisible_by, tp, "The embedding is split over tensor-parallel ranks"},
    {"seq_length", at_most, "max_position_embeddings", {}, absolute_positions},
    {"decoder_seq_length", at_most, "max_position_embeddings", {}, absolute_positions},
    {"decoder_seq_length", divisible_by, tp, "Sequence parallelism splits the sequences", "--sequence-parallel"},
    {"decoder_seq_length", divisible_by, tp, "Saved activations are split over tensor-parallel ranks", "--distribute-saved-activations"},
    {"pipeline_model_parallel_split_rank", less_than, "pipeline_model_parallel_size", "The decoder needs a stage"},
    {"--rotary-seq-len-interpolation-factor", excludes, "--position-embedding-type yarn", "YaRN scales positions itself"},
    {"yarn_beta_slow", less_than, "yarn_beta_fast", {}, "--position-embedding-type yarn"},
    {"--use-rope-scaling", excludes, "--rotary-seq-len-interpolation-factor", {}, "--position-embedding-type rope"},
    {"--hf", excludes, "--pretrained-checkpoint", "Both name the weights to start from"},
    {"--fp16-lm-cross-entropy", needs, "--fp16"},
    {"--norm-position output", excludes, "--parallel-residual or --apply-residual-connection-post-layernorm"},
    {"--parallel-residual", excludes, "--apply-residual-connection-post-layernorm"},
    {"--qk-layernorm-all-heads", needs, "--normalization RMSNorm", "A norm over all heads must be an RMSNorm", "--qk-layernorm"},
    // Experts
    {"num_experts", divisible_by, "expert_model_parallel_size", "Expert-parallel ranks hold the same number of experts"},
    {"moe_router_topk", at_most, "num_experts"},
    {"--expert-model-parallel-size > 1", needs, "--num-experts"},
    {"--expert-tensor-parallel-size > 1", needs, "--num-experts"},
    {"--moe-shared-expert-gate", needs, "--moe-shared-expert-intermediate-size"},
    {"--moe-shared-expert-overlap", needs, "--moe-shared-expert-intermediate-size"},
    {"--moe-router-enable-expert-bias", needs, "--moe-router-score-function sigmoid|sqrtsoftplus", "Biases are added to scores of these kinds", "--num-experts"},
    {"--moe-router-pre-softmax", needs, "--moe-router-score-function softmax", {}, "--num-experts"},
    {"--moe-router-num-groups", demands, "--moe-router-group-topk", {}, "--num-experts"},
    {"--moe-router-group-topk", demands, "--moe-router-num-groups", {}, "--num-experts"},
    {"moe_router_group_topk", at_most, "moe_router_num_groups", {}, "--num-experts"},
    {"num_experts", divisible_by, "moe_router_num_groups", "Groups have the same number of experts"},
    {"moe_router_topk", divisible_by, "moe_router_group_topk", "Each group of a token gives the same number of experts", "--num-experts"},
    {"moe_shared_expert_intermediate_size", divisible_by, tp, "Shared experts are split over tensor-parallel ranks", "--num-experts"},
    {"--moe-layer-recompute", excludes, "--recompute-granularity full", "Whole layers are recomputed"},
    // Recomputation
    {"--recompute-method", excludes, "--recompute-granularity selective"},
    {"--distribute-saved-activations", needs, "--recompute-granularity full"},
    {"--distribute-saved-activations", needs, "--tensor-model-parallel-size > 1"},
    {"--distribute-saved-activations", excludes, "--sequence-parallel", "Sequence parallelism already shards activations"},
    {"seq_length", divisible_by, tp, "Saved activations are split over tensor-parallel ranks", "--distribute-saved-activations"},
    // Precision and execution
    {"--cuda-graph-impl local", excludes, "--cpu-offloading-num-layers", "Copies to the host are not captured"},
    {"--fp16", excludes, "--bf16"},
    {"--fp8-format", needs, "--bf16", "Only the GEMMs of linear layers run in FP8"},
    {"--overlap-param-gather", needs, "--use-distributed-optimizer"},
    {"--cuda-graph-impl local", excludes, "--device cpu"},
    {"--cuda-graph-impl local", needs, "--tensor-model-parallel-size 1", "Communication is not captured"},
    {"--cuda-graph-impl local", needs, "--pipeline-model-parallel-size 1", "Communication is not captured"},
    {"--cuda-graph-impl local", needs, "--context-parallel-size 1", "Communication is not captured"},
    {"--calculate-per-token-loss", excludes, "--ddp-average-in-collective", "The first divides by the tokens of all ranks"},
    {"--max-nan-iterations", excludes, "--no-check-for-nan-in-loss-and-grad"},
    {"--adlr-autoresume", needs, "--save"},
    {"--profile", needs, "--save or --run-dir"},
    {"--wandb-project", needs, "--save or --run-dir"},
    {"--generate-interval", demands, "--generate-prompts"},
    {"--generate-prompts", demands, "--generate-interval"},
    {"profile_step_end", greater_than, "profile_step_start", {}, "--profile"},
    // Training length and learning rate
    {"--train-samples", excludes, "--train-iters"},
    {"--num-train-epochs", excludes, "--train-iters or --train-samples"},
    {"--num-train-epochs", excludes, "--rampup-batch-size or --step-batch-size-schedule", "Epochs count steps of one size"},
    {"--step-batch-size-schedule", excludes, "--global-batch-size or --num-micro-batches or --rampup-batch-size", "It holds every batch size"},
    {"--rampup-batch-size", excludes, "--train-iters", "A ramp-up counts in samples: give --train-samples, and the learning rate's lengths in samples"},
    {"--lr-decay-iters", excludes, "--train-samples", "Use --lr-decay-samples"},
    {"--lr-warmup-iters", excludes, "--train-samples", "Use --lr-warmup-samples"},
    {"--lr-wsd-decay-iters", excludes, "--train-samples", "Use --lr-wsd-decay-samples"},
    {"--lr-decay-samples", excludes, "--train-iters or --num-train-epochs", "Use --lr-decay-iters"},
    {"--lr-warmup-samples", excludes, "--train-iters or --num-train-epochs", "Use --lr-warmup-iters"},
    {"--lr-wsd-decay-samples", excludes, "--train-iters or --num-train-epochs", "Use --lr-wsd-decay-iters"},
    {"--lr-warmup-fraction", excludes, "--lr-warmup-iters or --lr-warmup-samples"},
    {"lr_warmup_iters", less_than, "lr_decay_iters"},
    {"lr_warmup_samples", less_than, "lr_decay_samples"},
    {"--lr-decay-style WSD", demands, "--lr-wsd-decay-iters", {}, "--train-iters > 0"},
    {"--lr-decay-style WSD", demands, "--lr-wsd-decay-samples", {}, "--train-samples > 0"},
    {"lr_wsd_decay_iters", at_most, "lr_decay_iters", {}, "--lr-decay-style WSD"},
    {"lr_wsd_decay_samples", at_most, "lr_decay_samples", {}, "--lr-decay-style WSD"},
    {"--override-opt-param-scheduler", excludes, "--use-checkpoint-opt-param-scheduler"},
    {"min_lr", at_most, "lr"},
    {"lr_warmup_init", at_most, "lr"},
    {"decoupled_lr", at_least, "decoupled_min_lr"},
    {"decoupled_lr", at_least, "min_lr", {}, "without --decoupled-min-lr"},
    {"--weight-decay-incr-style constant", excludes, "--start-weight-decay or --end-weight-decay"},
    {"--weight-decay-incr-style linear|cosine", needs, "--start-weight-decay"},
    {"--weight-decay-incr-style linear|cosine", needs, "--end-weight-decay"},
    {"end_weight_decay", at_least, "start_weight_decay"},
    {"--remove-padding always", excludes, "--cuda-graph-impl local", "CUDA graphs have fixed shapes"},
    {"--remove-padding always", needs, "--context-parallel-size 1", "Context-parallel ranks share each row with its padding"},
    // Data and tokenizer
    {"--mock-data", excludes, "--data-path or --data-args-path"},
    {"--mock-data", excludes, per_split_paths},
    {"--data-path or --data-args-path", excludes, per_split_paths},
    {"--data-args-path", excludes, "--data-path"},
    {"--per-split-data-args-path", excludes, split_paths},
    {"--split", excludes, per_split_paths},
    {"--tokenizer-type NullTokenizer", demands, "--vocab-size"},
    {"--tokenizer-type GPT2BPETokenizer|BertWordPieceLowerCase|BertWordPieceCase", demands, "--vocab-file"},
    {"--tokenizer-type GPT2BPETokenizer", demands, "--merge-file"},
    {"--tokenizer-type SentencePieceTokenizer|GPTSentencePieceTokenizer|Llama2Tokenizer|HuggingFaceTokenizer|SFTTokenizer|"
     "TikTokenizer", demands, "--tokenizer-model"},
    // Finetuning
    {"--sft", excludes, "--mock-data", "Conversations are read from --data-path"},
    {"--sft-tokenizer-prompt-format", excludes, "--chat-template", "Both say how conversations are written"},
    // Generation
    {"--top-p", excludes, "--top-k"},
    {"--greedy", excludes, "--top-k > 1 or --top-p"},
};
// clang-format on

std::string with_reason(std::string what, std::string_view reason) {
  return reason.empty() ? what : fmt::format("{}. {}", what, reason);
}

void check_conditions(const Rule& rule, Validation& v) {
  const auto subject = find_held(rule.subject, v.args, v.sources);
  const auto other = find_held(rule.other, v.args, v.sources);
  if (!subject || (rule.relation == excludes) != other.has_value()) return;
  if (rule.relation == excludes) {
    v.reject(
        subject->name,
        with_reason(fmt::format("{} and {} are mutually exclusive", subject->flag, other->flag), rule.reason),
        "Set only one of them");
    return;
  }
  const std::string what = with_reason(fmt::format("{} needs {}", subject->flag, rule.other), rule.reason);
  if (rule.relation == demands)
    return v.reject(canonical_name(rule.other), what, fmt::format("Give {}", rule.other));
  v.reject(subject->name, what, fmt::format("Add {}, or leave {} out", rule.other, flag_of(subject->name)));
}

void check_values(const Rule& rule, Validation& v) {
  const Value a = get_value(arguments_schema().field(rule.subject), &v.args);
  const Value b = get_value(arguments_schema().field(rule.other), &v.args);
  if (std::holds_alternative<std::monostate>(a) || std::holds_alternative<std::monostate>(b)) return;
  if (rule.relation == divisible_by) {
    v.divisible({rule.subject, std::get<int64_t>(a), rule.other, std::get<int64_t>(b), rule.reason});
    return;
  }
  const std::partial_ordering order = a <=> b;  // both have the same type
  const bool holds = rule.relation == at_most     ? order <= 0
                     : rule.relation == at_least  ? order >= 0
                     : rule.relation == less_than ? order < 0
                                                  : order > 0;
  if (holds) return;
  constexpr std::string_view words[] = {"at most", "at least", "less than", "greater than"};
  const std::string_view relation = words[static_cast<size_t>(rule.relation) - static_cast<size_t>(at_most)];
  const std::string limit = python_str(b);
  v.reject(
      v.chosen(rule.subject) || !v.chosen(rule.other) ? rule.subject : rule.other,
      fmt::format("{} = {} must be {} {} = {}", rule.subject, python_str(a), relation, rule.other, limit),
      fmt::format("Use a value {} {}, or change {}", relation, limit, rule.other));
}

bool applies(std::string_view when, const Arguments& args, const Sources& sources) {
  constexpr std::string_view negation = "without ";
  if (when.empty()) return true;
  if (!when.starts_with(negation)) return find_held(when, args, sources).has_value();
  return !find_held(when.substr(negation.size()), args, sources);
}

std::optional<int64_t> integer(std::string_view name, const Arguments& args) {
  const Value value = get_value(arguments_schema().field(name), &args);
  const auto* const number = std::get_if<int64_t>(&value);
  return number ? std::optional(*number) : std::nullopt;
}

}  // namespace

std::vector<Validation::Divisible> divided_sizes(const Arguments& args) {
  std::vector<Validation::Divisible> sizes;
  for (const Rule& rule : rules) {
    const bool divides = rule.relation == divisible_by && rule.other.ends_with("_parallel_size");
    if (!divides || !arguments_schema().field(rule.subject).model || !applies(rule.when, args, {})) continue;
    const auto size = integer(rule.subject, args), ranks = integer(rule.other, args);
    if (size && ranks) sizes.push_back({rule.subject, *size, rule.other, *ranks, rule.reason});
  }
  if (!args.num_experts || !args.moe_ffn_hidden_size) return sizes;
  const int64_t ranks = args.expert_tensor_parallel_size.value_or(args.tensor_model_parallel_size);
  sizes.push_back(
      {"moe_ffn_hidden_size", *args.moe_ffn_hidden_size, "expert_tensor_parallel_size", ranks, ""});
  return sizes;
}

void check_rules(Validation& v) {
  for (const Rule& rule : rules) {
    if (!applies(rule.when, v.args, v.sources)) continue;
    if (rule.relation >= divisible_by) {
      check_values(rule, v);
    } else {
      check_conditions(rule, v);
    }
  }
}

}  // namespace teratron
