#include <algorithm>
#include <functional>

#include "teratron/plan/rank_memory.h"

namespace teratron {

namespace {

constexpr size_t most_advice = 3;

struct Change {
  std::string flags;
  std::string cost;  // or condition
  std::function<void(Arguments&)> apply;
};

bool divides(int64_t part, const std::optional<int64_t>& whole) {
  return whole && *whole % part == 0;
}

// Twice the present tensor and pipeline parallel sizes, if they divide the model.
std::vector<Change> larger_parallel_sizes(const Arguments& a) {
  const int64_t tp = 2 * a.tensor_model_parallel_size, pp = 2 * a.pipeline_model_parallel_size;
  std::vector<Change> changes;
  if ((!a.num_attention_heads || divides(tp, a.num_attention_heads)) &&
      (!a.group_query_attention || divides(tp, a.num_query_groups)) && divides(tp, a.ffn_hidden_size) &&
      (!a.padded_vocab_size || divides(tp, a.padded_vocab_size))) {
    changes.push_back({fmt::format("--tensor-model-parallel-size {}", tp), "with twice the ranks",
                       [tp](Arguments& x) { x.tensor_model_parallel_size = tp; }});
  }
  const bool is_even = !a.pipeline_model_parallel_layout && !a.decoder_first_pipeline_num_layers &&
                       !a.decoder_last_pipeline_num_layers && !a.num_virtual_stages_per_pipeline_rank &&
                       !a.num_layers_per_virtual_pipeline_stage &&
                       !a.account_for_embedding_in_pipeline_split && !a.account_for_loss_in_pipeline_split;
  if (is_even && divides(pp, a.num_layers)) {
    changes.push_back({fmt::format("--pipeline-model-parallel-size {}", pp), "with twice the ranks",
                       [pp](Arguments& x) { x.pipeline_model_parallel_size = pp; }});
  }
  return changes;
}

// Twice the present context-parallel size, if the family and the lengths allow it.
std::vector<Change> more_context_ranks(const Family& family, const Arguments& a) {
  const int64_t cp = 2 * a.context_parallel_size;
  const int64_t shards = a.sequence_parallel ? a.tensor_model_parallel_size : 1;
  if (a.cp_comm_type != std::vector<std::string>{"p2p"} || a.window_size ||
      !divides(2 * cp * shards, a.seq_length))
    return {};
  Arguments changed = a;
  changed.context_parallel_size = cp;
  std::vector<Problem> problems;
  family.check(changed, problems);
  if (!problems.empty()) return {};
  return {{fmt::format("--context-parallel-size {}", cp), "with twice the ranks",
           [cp](Arguments& x) { x.context_parallel_size = cp; }}};
}

std::vector<Change> recomputation(const Arguments& a) {
  std::vector<Change> changes;
  if (!a.recompute_granularity) {
    changes.push_back({"--recompute-granularity selective", "attention scores are computed again in backward",
                       [](Arguments& x) { x.recompute_granularity = "selective"; }});
  }
  if (a.recompute_granularity != "full") {
    changes.push_back({"--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
                       "a third more computation", [](Arguments& x) {
                         x.recompute_granularity = "full";
                         x.recompute_method = "uniform";
                         x.recompute_num_layers = 1;
                       }});
  }
  const int64_t layers = a.num_layers.value_or(0) / a.pipeline_model_parallel_size /
                         a.num_virtual_stages_per_pipeline_rank.value_or(1);
  if (a.cpu_offloading_num_layers < layers && a.cuda_graph_impl != "local" && a.device != "cpu") {
    changes.push_back({fmt::format("--cpu-offloading-num-layers {}", layers),
                       "activations are copied to host memory and back",
                       [layers](Arguments& x) { x.cpu_offloading_num_layers = layers; }});
  }
  if (a.loss_chunks == 1) {
    changes.push_back({"--loss-chunks 8", "logits are computed in parts, again in backward",
                       [](Arguments& x) { x.loss_chunks = 8; }});
  }
  return changes;
}

std::vector<Change> all_changes(const Family& family, const Arguments& a) {
  std::vector<Change> changes = recomputation(a);
  if (*a.micro_batch_size > 1) {
    changes.push_back(
        {fmt::format("--micro-batch-size {} (now {})", *a.micro_batch_size / 2, *a.micro_batch_size),
         "more micro-batches in the same global batch", [](Arguments& x) {
           *x.micro_batch_size /= 2;
           *x.num_micro_batches *= 2;
         }});
  }
  if (!a.bf16 && !a.fp16)
    changes.push_back({"--bf16", "lower precision", [](Arguments& x) { x.bf16 = true; }});
  if (a.tensor_model_parallel_size > 1 && !a.sequence_parallel) {
    changes.push_back({"--sequence-parallel", "shards what tensor parallelism replicates",
                       [](Arguments& x) { x.sequence_parallel = true; }});
  }
  const int64_t replicas = *a.data_parallel_size * a.context_parallel_size;
  if (!a.use_distributed_optimizer && replicas > 1) {
    changes.push_back({"--use-distributed-optimizer",
                       fmt::format("shards the optimizer state over {} ranks", replicas),
                       [](Arguments& x) { x.use_distributed_optimizer = true; }});
  }
  for (Change& change : larger_parallel_sizes(a)) changes.push_back(std::move(change));
  for (Change& change : more_context_ranks(family, a)) changes.push_back(std::move(change));
  return changes;
}

// Sizes beyond those of all published models: more likely a typing error than a plan.
struct LargestSize {
  std::string_view name;
  int64_t size;
  std::string_view follows = {};  // the setting that it is derived from by default
};
constexpr LargestSize largest_sizes[] = {{"num_layers", 1000},
                                         {"hidden_size", 100'000},
                                         {"ffn_hidden_size", 1'000'000, "hidden_size"},
                                         {"num_attention_heads", 10'000},
                                         {"kv_channels", 10'000, "hidden_size"},
                                         {"seq_length", 10'000'000},
                                         {"max_position_embeddings", 10'000'000, "seq_length"},
                                         {"vocab_size", 10'000'000},
                                         {"make_vocab_size_divisible_by", 1'000'000},
                                         {"padded_vocab_size", 10'000'000, "vocab_size"},
                                         {"micro_batch_size", 10'000}};

std::string absurd_sizes(const Arguments& args) {
  std::string text;
  std::vector<std::string_view> absurd;
  for (const LargestSize& largest : largest_sizes) {
    const Value value = get_value(arguments_schema().field(largest.name), &args);
    const auto* const size = std::get_if<int64_t>(&value);
    if (!size || *size <= largest.size) continue;
    absurd.push_back(largest.name);
    if (std::find(absurd.begin(), absurd.end(), largest.follows) != absurd.end()) continue;
    text += fmt::format("\n{} = {} is far above that of any published model: check {}", largest.name, *size,
                        flag_of(largest.name));
  }
  return text;
}

}  // namespace

std::vector<std::string> memory_advice(const Family& family, const Arguments& args) {
  const int64_t vocabulary = planned_vocabulary(args);
  const auto peak = [&](const Arguments& a) {
    return largest_rank_memory(a, family.plan(a, vocabulary)).peak();
  };
  constexpr double worth_it = 0.98;
  const double before = peak(args);
  std::vector<std::pair<double, std::string>> found;
  for (const Change& change : all_changes(family, args)) {
    Arguments changed = args;
    change.apply(changed);
    const double after = peak(changed);
    if (after > worth_it * before) continue;
    found.emplace_back(after, fmt::format("{}: {:.2f} instead of {:.2f} GiB; {}", change.flags, after / gib,
                                          before / gib, change.cost));
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  found.resize(std::min(found.size(), most_advice));
  std::vector<std::string> advice;
  for (const auto& [_, text] : found) advice.push_back(text);
  return advice;
}

Fault explain_out_of_memory(const Fault& cause, const Family& family, const Arguments& args, int64_t stage) {
  const RankMemory memory = rank_memory(args, family.plan(args, planned_vocabulary(args)), stage);
  std::string text = fmt::format(
      "{}{}\n"
      "Memory of a rank in pipeline stage {}, in GiB: weights {:.2f}, gradients {:.2f}, optimizer {:.2f}, "
      "activations {:.2f}, temporary {:.2f}; peak {:.2f}.",
      cause.what(), absurd_sizes(args), stage, memory.weights / gib, memory.gradients / gib,
      memory.optimizer / gib, memory.activations / gib, memory.temporary / gib, memory.peak() / gib);
  const std::vector<std::string> advice = memory_advice(family, args);
  if (!advice.empty()) text += "\nTo reduce it:";
  for (const std::string& line : advice) text += "\n  " + line;
  return Fault(text, ExitCode::out_of_memory);
}

}  // namespace teratron
