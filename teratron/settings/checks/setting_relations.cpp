// Relations between two settings, as rows of a table.
#include <compare>
#include <set>
#include <utility>

#include "teratron/settings/checks/conditions.h"
#include "teratron/settings/checks/formula.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

enum class Relation : uint8_t {
  at_most_one,  // of the conditions
  excludes,     // of two conditions only one may hold
  needs,        // the first condition needs the other
  demands,      // same, but the other setting is blamed
  multiple_of,  // the rest compare settings that are set, or formulas of them (formula.h)
  divisible_by,
  divisible_either_way,  // one by the other
  equals,
  at_most,
  at_least,
  less_than,
  greater_than,
};
using enum Relation;

struct Rule {
  std::string_view subject;  // conditions (find_held), or a setting or formula
  Relation relation;
  std::string_view other;
  std::string_view reason = {};
  std::string_view when = {};  // applies()
};

// Relative ones have no last position.
constexpr std::string_view absolute_positions =
    "--position-embedding-type learned_absolute|rope|yarn|alibi|none";
constexpr std::string_view tp = "tensor_model_parallel_size";
constexpr std::string_view split_paths = "--train-data-path or --valid-data-path or --test-data-path";
constexpr std::string_view etp = "expert_tensor_parallel_size";
constexpr std::string_view fp8_gemms = "which FP8 GEMMs require";
constexpr std::string_view expert_split = "Experts are split over the ranks of their tensor-parallel group";
constexpr std::string_view heads_of_a2a =
    "With --cp-comm-type a2a, unlike p2p and all_gather, each rank has a part of the heads";
constexpr std::string_view all_ranks = "context_parallel_size * tensor_model_parallel_size";
constexpr std::string_view per_split_paths =
    "--train-data-path or --valid-data-path or --test-data-path or --per-split-data-args-path";

// clang-format off
constexpr Rule rules[] = {
    // Model
    {"hidden_size", divisible_by, "num_attention_heads", "It is split into heads unless kv_channels is given", "without --kv-channels and without --multi-latent-attention"},
    {"num_attention_heads", divisible_by, tp, "Heads are split over tensor-parallel ranks"},
    {"num_attention_heads", divisible_by, "num_query_groups", "Groups have the same number of query heads", "--group-query-attention"},
    {"num_query_groups", divisible_either_way, tp, "Key/value heads are split over tensor-parallel ranks, or each is on as many ranks", "--group-query-attention"},
    {"ffn_hidden_size", divisible_by, tp, "The MLP is split over tensor-parallel ranks"},
    {"padded_vocab_size", divisible_by, tp, "The embedding is split over tensor-parallel ranks"},
    {"seq_length", at_most, "max_position_embeddings", {}, absolute_positions},
    {"encoder_seq_length", equals, "seq_length", "Both are the length of a sequence: set only one"},
    {"loss_chunks", at_most, "seq_length / context_parallel_size", "A rank has no more positions", "without --sequence-parallel"},
    {"loss_chunks", at_most, "seq_length / context_parallel_size / tensor_model_parallel_size", "A rank has no more positions", "--sequence-parallel"},
    {"decoder_seq_length", at_most, "max_position_embeddings", {}, absolute_positions},
    {"decoder_seq_length", divisible_by, "2 * context_parallel_size", "Each context-parallel rank holds two chunks of the sequence", "--context-parallel-size > 1"},
    {"decoder_seq_length / context_parallel_size", divisible_by, tp, "Sequence parallelism splits the sequences", "--sequence-parallel"},
    {"decoder_seq_length", divisible_by, tp, "Saved activations are split over tensor-parallel ranks", "--distribute-saved-activations"},
    {"pipeline_model_parallel_split_rank", less_than, "pipeline_model_parallel_size", "The decoder needs a stage"},
    {"seq_length", divisible_by, "2 * context_parallel_size", "Each context-parallel rank holds two chunks of the sequence", "--context-parallel-size > 1"},
    {"seq_length / context_parallel_size", divisible_by, tp, "Sequence parallelism splits the sequence of a context-parallel rank", "--sequence-parallel"},
    {"num_attention_heads", divisible_by, all_ranks, heads_of_a2a, "--context-parallel-size > 1 and --cp-comm-type a2a"},
    {"num_query_groups", divisible_by, all_ranks, heads_of_a2a, "--context-parallel-size > 1 and --cp-comm-type a2a and --group-query-attention"},
    {"--attention-head-type multiquery", excludes, "--num-query-groups > 1"},
    {"num_query_groups", equals, "num_attention_heads", "--attention-head-type multihead is a key/value head per attention head", "--attention-head-type multihead and --group-query-attention"},
    {"--no-position-embedding", excludes, "--position-embedding-type learned_absolute"},
    {"--swiglu or --geglu or --quick-geglu or --relu or --squared-relu or --openai-gelu", at_most_one, {}, "An MLP has one activation"},
    {"--glu-linear-offset or --activation-func-clamp-value", needs, "--swiglu or --quick-geglu", "Other activations have no offset and no limit"},
    {"--softmax-type off-by-one|learnable", excludes, "--position-embedding-type alibi|relative", "Sinks are not among scores with biases"},
    {"--softmax-type off-by-one|learnable", needs, "--attention-dropout 0.0", "Sinks are not among scores with dropout"},
    {"--softmax-type off-by-one|learnable", excludes, "--attn-logit-softcapping > 0", "Sinks are not among capped scores"},
    {"--longrope-short-factors", demands, "--longrope-long-factors"},
    {"--longrope-long-factors", demands, "--longrope-short-factors"},
    {"--longrope-short-factors", excludes, "--position-embedding-type yarn or --use-rope-scaling or --rotary-seq-len-interpolation-factor", "LongRoPE scales positions itself"},
    {"--rotary-seq-len-interpolation-factor", excludes, "--position-embedding-type yarn", "YaRN scales positions itself"},
    {"yarn_beta_slow", less_than, "yarn_beta_fast", {}, "--position-embedding-type yarn"},
    {"--use-rope-scaling", excludes, "--rotary-seq-len-interpolation-factor", {}, "--position-embedding-type rope"},
    {"--multi-latent-attention", needs, "--position-embedding-type rope|yarn", "Latents are without positions"},
    {"--multi-latent-attention", excludes, "--group-query-attention or --window-size or --qk-layernorm-all-heads or --qk-layernorm-per-head or --attention-output-gate or --add-qkv-bias or --rotary-interleaved", "All heads share a latent and a rotated key, whose channels are adjacent pairs"},
    {"--multi-latent-attention", excludes, "--experimental-attention-variant", "Layers are of one kind"},
    {"--multi-latent-attention", excludes, "--softmax-type off-by-one|learnable or --attn-logit-softcapping > 0 or --no-rope-freq or --rotary-base-local or --longrope-short-factors or --rotary-reversed or --attention-chunk-size or --qk-l2-norm", "Attention to latents has plain scores, and rotates in every layer"},
    {"--position-embedding-type yarn", excludes, "--rope-type rope", {}, "--multi-latent-attention"},
    {"--hf", excludes, "--pretrained-checkpoint", "Both name the weights to start from"},
    {"--fp16-lm-cross-entropy", needs, "--fp16"},
    {"--norm-position output|both", excludes, "--parallel-residual or --apply-residual-connection-post-layernorm"},
    {"--parallel-residual", excludes, "--apply-residual-connection-post-layernorm"},
    {"--parallel-residual-one-norm", needs, "--parallel-residual", "Branches one after the other have norms of different streams"},
    {"--qk-l2-norm", excludes, "--qk-layernorm", "Queries and keys have one norm"},
    {"--qk-layernorm-per-head", excludes, "--qk-layernorm-all-heads", "A norm is of each head or of all together", "--qk-layernorm"},
    {"--attention-chunk-size", excludes, "--window-size", "Layers have chunks or windows"},
    {"--attention-chunk-size", needs, "--position-embedding-type rope|yarn", "Layers with a rotation have chunks"},
    {"--qk-l2-norm", needs, "--position-embedding-type rope|yarn", "Layers with a rotation have these norms"},
    {"--qk-layernorm-all-heads", needs, "--normalization RMSNorm", "A norm over all heads must be an RMSNorm", "--qk-layernorm"},
    // Experts
    {"num_experts", divisible_by, "expert_model_parallel_size", "Expert-parallel ranks hold the same number of experts"},
    {"moe_router_topk", at_most, "num_experts"},
    {"--expert-model-parallel-size > 1", needs, "--num-experts"},
    {"--expert-tensor-parallel-size > 1", needs, "--num-experts"},
    {"--moe-shared-expert-gate", needs, "--moe-shared-expert-intermediate-size"},
    {"--moe-shared-expert-overlap", needs, "--moe-shared-expert-intermediate-size"},
    {"--moe-router-enable-expert-bias", needs, "--moe-router-score-function sigmoid|sqrtsoftplus or --moe-router-least-sum", "Biases are added to scores of these kinds, or to those of a softmax over all experts", "--num-experts"},
    {"--moe-router-least-sum", needs, "--moe-router-pre-softmax", "Scores of the chosen experts alone have the sum 1", "--num-experts"},
    {"--moe-router-pre-softmax", needs, "--moe-router-score-function softmax", {}, "--num-experts"},
    {"--moe-router-num-groups", demands, "--moe-router-group-topk", {}, "--num-experts"},
    {"--moe-router-group-topk", demands, "--moe-router-num-groups", {}, "--num-experts"},
    {"moe_router_group_topk", at_most, "moe_router_num_groups", {}, "--num-experts"},
    {"num_experts", divisible_by, "moe_router_num_groups", "Groups have the same number of experts"},
    {"moe_router_topk", divisible_by, "moe_router_group_topk", "Each group of a token gives the same number of experts", "--num-experts and without --moe-router-group-score-topk"},
    {"moe_router_group_score_topk", at_most, "num_experts / moe_router_num_groups", "A group has no more experts", "--num-experts"},
    {"--moe-latent-size", excludes, "--fp8-format", "Projections before and after experts run in the model's dtype", "--num-experts"},
    {"moe_shared_expert_intermediate_size", divisible_by, tp, "Shared experts are split over tensor-parallel ranks", "--num-experts"},
    {"--moe-layer-recompute", excludes, "--recompute-granularity full", "Whole layers are recomputed"},
    {"moe_ffn_hidden_size", divisible_by, etp, expert_split, "--num-experts and --moe-ffn-hidden-size"},
    {"moe_ffn_hidden_size", divisible_by, tp, expert_split, "--num-experts and --moe-ffn-hidden-size and without --expert-tensor-parallel-size"},
    {"ffn_hidden_size", divisible_by, etp, expert_split, "--num-experts and without --moe-ffn-hidden-size"},
    {etp, equals, tp, "Tensor-parallel ranks have the same tokens unless you add --sequence-parallel", "--num-experts and --tensor-model-parallel-size > 1 and without --sequence-parallel"},
    {"moe_router_topk", at_most, "num_experts / moe_router_num_groups * moe_router_group_topk", "The chosen groups have no more experts", "--num-experts"},
    {"--moe-router-load-balancing-type sinkhorn", excludes, "--moe-router-score-function sigmoid|sqrtsoftplus or --moe-router-pre-softmax or --moe-router-num-groups or --moe-router-topk-scaling-factor", "Sinkhorn chooses experts by itself, without scores, groups and a scaling factor", "--num-experts"},
    {"--moe-aux-loss-coeff > 0", excludes, "--moe-router-load-balancing-type none|sinkhorn", "The type has no loss", "--num-experts"},
    {"--moe-pad-expert-input-to-capacity", needs, "--moe-expert-capacity-factor > 0", "There is no capacity to pad to without it", "--num-experts and without --moe-expert-capacity-factor 0.0"},
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
    {"hidden_size", multiple_of, "16", fp8_gemms, "--fp8-format"},
    {"ffn_hidden_size / tensor_model_parallel_size", multiple_of, "16", fp8_gemms, "--fp8-format"},
    {"num_attention_heads * kv_channels / tensor_model_parallel_size", multiple_of, "16", fp8_gemms, "--fp8-format and without --multi-latent-attention"},
    {"seq_length / context_parallel_size * micro_batch_size", multiple_of, "16", fp8_gemms, "--fp8-format"},
    {"moe_ffn_hidden_size / expert_tensor_parallel_size", multiple_of, "16", fp8_gemms, "--fp8-format and --num-experts and --moe-ffn-hidden-size"},
    {"ffn_hidden_size / expert_tensor_parallel_size", multiple_of, "16", fp8_gemms, "--fp8-format and --num-experts and without --moe-ffn-hidden-size"},
    {"moe_ffn_hidden_size / tensor_model_parallel_size", multiple_of, "16", fp8_gemms, "--fp8-format and --num-experts and --moe-ffn-hidden-size and without --expert-tensor-parallel-size"},
    {"moe_shared_expert_intermediate_size / tensor_model_parallel_size", multiple_of, "16", fp8_gemms, "--fp8-format and --num-experts"},
    {"padded_vocab_size / tensor_model_parallel_size", multiple_of, "16", fp8_gemms, "--fp8-output-proj and --fp8-format"},
    {"make_vocab_size_divisible_by", multiple_of, "16", fp8_gemms, "--fp8-output-proj and --fp8-format and without --padded-vocab-size"},
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
    {"--logits-out", needs, "--return-logits"},
    {"--gather-logits", needs, "--logits-out"},
    {"--generate-interval", demands, "--generate-prompts"},
    {"--generate-prompts", demands, "--generate-interval"},
    {"profile_step_end", greater_than, "profile_step_start", {}, "--profile"},
    // Training length and learning rate
    {"--train-samples", excludes, "--train-iters"},
    {"--num-train-epochs", excludes, "--train-samples"},
    {"--num-train-epochs", excludes, "--rampup-batch-size or --step-batch-size-schedule", "Epochs count steps of one size"},
    {"--step-batch-size-schedule", excludes, "--num-micro-batches or --rampup-batch-size", "It holds every batch size"},
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
    {"--no-weight-decay-cond-type", excludes, "--no-wd-decay-cond", "Both choose the parameters without weight decay"},
    {"--scale-lr-cond", needs, "--lr-mult", "It names the parameters that the factor is for"},
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

// Values that are wrong under a condition. `what` follows "name = value".
struct Refusal {
  std::string_view condition, what, fix, when = {};
};

// clang-format off
constexpr Refusal refusals[] = {
    {"--moe-router-topk 1", "makes the softmax over the chosen expert always 1, without a gradient", "Add --moe-router-pre-softmax, or choose more experts", "--num-experts and --moe-router-score-function softmax and without --moe-router-pre-softmax or --moe-router-load-balancing-type sinkhorn"},
    {"--moe-expert-capacity-factor 0.0", "drops every token", "Use a factor above 0, or a negative one to drop none", "--num-experts"},
    {"--seed > 4294967295", "exceeds the 32 bits that numpy's RandomState takes, which orders the data", "Use at most 4294967295"},
};
// clang-format on

std::string with_reason(std::string what, std::string_view reason) {
  return reason.empty() ? what : fmt::format("{}. {}", what, reason);
}

void check_at_most_one(const Rule& rule, Validation& v) {
  const std::vector<HeldCondition> held = all_held(rule.subject, v.args, v.sources);
  if (held.size() < 2) return;
  std::string flags;
  for (const HeldCondition& each : held) flags += (flags.empty() ? "" : " and ") + each.flag;
  v.reject(held.front().name, with_reason(flags + " are mutually exclusive", rule.reason),
           "Set only one of them");
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

bool is_formula(std::string_view text) {
  return text.find(' ') != text.npos;
}

// A setting, or the number that a formula gives.
Value value_of(std::string_view text, const Arguments& args) {
  if (!is_formula(text)) return get_value(arguments_schema().field(text), &args);
  const std::optional<int64_t> value = evaluate(text, args).value;
  return value ? Value(*value) : Value();
}

// A setting and the reason of a row that it breaks: another row with both has the same cause.
using Reported = std::set<std::pair<std::string_view, std::string_view>>;

void check_divisor(const Rule& rule, Validation& v, Reported& reported) {
  const Formula a = evaluate(rule.subject, v.args), b = evaluate(rule.other, v.args);
  if (!a.value || !b.value || *a.value % *b.value == 0) return;
  if (rule.relation == divisible_either_way && *b.value % *a.value == 0) return;
  if (!reported.emplace(a.blamed, rule.reason).second) return;
  if (rule.relation != multiple_of) {
    v.divisible({a.blamed, *a.value, rule.other, *b.value, rule.reason, rule.subject, b.factor});
  } else {
    v.reject(
        a.blamed,
        fmt::format("{} = {} is not a multiple of {}, {}", rule.subject, *a.value, rule.other, rule.reason),
        fmt::format("Choose sizes that make it {}, or leave {} out", multiples_text(*a.value, *b.value),
                    rule.when.substr(0, rule.when.find(' '))));
  }
}

bool is_ordered(Relation relation, std::partial_ordering order) {
  if (relation == equals) return order == 0;
  if (relation == at_most) return order <= 0;
  if (relation == at_least) return order >= 0;
  return relation == less_than ? order < 0 : order > 0;
}

void check_values(const Rule& rule, Validation& v) {
  const Value a = value_of(rule.subject, v.args), b = value_of(rule.other, v.args);
  if (std::holds_alternative<std::monostate>(a) || std::holds_alternative<std::monostate>(b)) return;
  if (is_ordered(rule.relation, a <=> b)) return;  // both have the same type
  constexpr std::string_view words[] = {"equal to", "at most", "at least", "less than", "greater than"};
  const std::string_view relation = words[static_cast<size_t>(rule.relation) - static_cast<size_t>(equals)];
  const std::string limit = python_str(b);
  v.reject(v.chosen(rule.subject) || !v.chosen(rule.other) ? rule.subject : rule.other,
           with_reason(fmt::format("{} = {} must be {} {} = {}", rule.subject, python_str(a), relation,
                                   rule.other, limit),
                       rule.reason),
           fmt::format("Use a value {} {}, or change {}", relation, limit, rule.other));
}

}  // namespace

std::vector<DividedSize> divided_sizes(const Arguments& args) {
  std::vector<DividedSize> sizes;
  for (const Rule& rule : rules) {
    const bool divides = rule.relation == divisible_by || rule.relation == divisible_either_way;
    if (!divides || !rule.other.ends_with("_parallel_size") || is_formula(rule.subject) ||
        !arguments_schema().field(rule.subject).model || !applies(rule.when, args, {}))
      continue;
    const Formula size = evaluate(rule.subject, args), ranks = evaluate(rule.other, args);
    if (!size.value || !ranks.value) continue;
    sizes.push_back({rule.subject, *size.value, rule.other, *ranks.value, settings_in(rule.other),
                     rule.relation == divisible_either_way});
    if (rule.other == etp) sizes.back().settings.emplace_back(tp);  // its default follows from it
  }
  return sizes;
}

void check_rules(Validation& v) {
  Reported reported;
  for (const Rule& rule : rules) {
    if (!applies(rule.when, v.args, v.sources)) continue;
    if (rule.relation == at_most_one) {
      check_at_most_one(rule, v);
    } else if (rule.relation < multiple_of) {
      check_conditions(rule, v);
    } else if (rule.relation < equals) {
      check_divisor(rule, v, reported);
    } else {
      check_values(rule, v);
    }
  }
  for (const auto& [condition, what, fix, when] : refusals) {
    const auto held = find_held(condition, v.args, v.sources);
    if (!held || !applies(when, v.args, v.sources)) continue;
    const std::string value = python_str(get_value(arguments_schema().field(held->name), &v.args));
    v.reject(held->name, fmt::format("{} = {} {}", held->name, value, what), std::string(fix));
  }
}

}  // namespace teratron
