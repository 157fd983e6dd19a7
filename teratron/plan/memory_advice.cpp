#include <algorithm>
#include <functional>

#include <fmt/ranges.h>

#include "teratron/base/strings.h"
#include "teratron/plan/rank_memory.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

constexpr size_t most_advice = 3;

struct Change {
  std::string flags;
  std::string cost;  // or condition
  std::function<void(Arguments&)> apply;
  std::string now = {};  // what the flags replace, for people
};

// What advice is about.
struct Advised {
  const Family& family;
  const Arguments& args;
  ModelPlan model;
};

size_t broken_rules(Arguments args) {
  Sources unknown;
  std::vector<std::string> notices;
  Validation validation{args, unknown, notices};
  check_rules(validation);
  return validation.problems.size();
}

// Whether the family's model can be divided so. Derived values count as the user's here, so that some rules
// on them are broken already.
bool is_possible(const Advised& now, const Arguments& changed) {
  std::vector<Problem> problems;
  if (now.family.check) now.family.check(changed, problems);
  try {
    pipeline_layout(changed, now.model);
  } catch (const UserError&) {
    return false;
  }
  return problems.empty() && broken_rules(changed) <= broken_rules(now.args);
}

// Twice the present tensor, pipeline and context parallel sizes, where the model can be divided so: with half
// the replicas on the same ranks, where there are several, else with twice the ranks (see layout_costs).
std::vector<Change> larger_parallel_sizes(const Advised& now) {
  const Arguments& a = now.args;
  std::vector<Change> changes;
  const auto add = [&](std::string_view setting, int64_t Arguments::* size) {
    const int64_t twice = 2 * a.*size;
    const auto apply = [=](Arguments& x) {
      x.*size = twice;
      if (*x.data_parallel_size % 2 != 0) return;
      x.data_parallel_size = *x.data_parallel_size / 2;
      if (x.num_micro_batches) *x.num_micro_batches *= 2;
    };
    Arguments changed = a;
    apply(changed);
    if (is_possible(now, changed))
      changes.push_back({fmt::format("{} {}", flag_of(setting), twice), "", apply});
  };
  add("tensor_model_parallel_size", &Arguments::tensor_model_parallel_size);
  const bool is_even = !a.pipeline_model_parallel_layout && !a.decoder_first_pipeline_num_layers &&
                       !a.decoder_last_pipeline_num_layers && !a.num_virtual_stages_per_pipeline_rank &&
                       !a.num_layers_per_virtual_pipeline_stage &&
                       !a.account_for_embedding_in_pipeline_split && !a.account_for_loss_in_pipeline_split;
  if (is_even) add("pipeline_model_parallel_size", &Arguments::pipeline_model_parallel_size);
  if (a.cp_comm_type == std::vector<std::string>{"p2p"} && !a.window_size && a.seq_length)
    add("context_parallel_size", &Arguments::context_parallel_size);
  return changes;
}

std::vector<Change> recomputation(const Advised& now) {
  const Arguments& a = now.args;
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
  const int64_t layers = std::ranges::max(now.model.towers, {}, &Tower::layers).layers /
                         a.pipeline_model_parallel_size / a.num_virtual_stages_per_pipeline_rank.value_or(1);
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

std::vector<Change> all_changes(const Advised& now) {
  const Arguments& a = now.args;
  std::vector<Change> changes = recomputation(now);
  if (*a.micro_batch_size > 1) {
    changes.push_back({fmt::format("--micro-batch-size {}", *a.micro_batch_size / 2),
                       "more micro-batches in the same global batch",
                       [](Arguments& x) {
                         *x.micro_batch_size /= 2;
                         *x.num_micro_batches *= 2;
                       },
                       fmt::format(" (now {})", *a.micro_batch_size)});
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
  for (Change& change : larger_parallel_sizes(now)) changes.push_back(std::move(change));
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

namespace {

int64_t ranks_of(const Arguments& a) {
  return a.tensor_model_parallel_size * a.pipeline_model_parallel_size * a.context_parallel_size *
         *a.data_parallel_size;
}

// What another layout costs; "": nothing.
std::string layout_costs(const Arguments& before, const Arguments& after) {
  const int64_t times = ranks_of(after) / ranks_of(before);
  std::string text;
  if (times > 1) text = times == 2 ? "with twice the ranks" : fmt::format("with {} times the ranks", times);
  if (*after.data_parallel_size < *before.data_parallel_size)
    text += fmt::format("{}{} replicas in place of {}", text.empty() ? "" : ", ", *after.data_parallel_size,
                        *before.data_parallel_size);
  return text;
}

// One change or several, with the memory that follows.
struct Outcome {
  std::string flags, now = {};
  std::vector<std::string> costs = {};
  Arguments args;
  RankMemory memory = {};

  std::string text(const Arguments& before, const RankMemory& memory_before) const {
    std::vector<std::string> all = costs;
    if (std::string layout = layout_costs(before, args); !layout.empty()) all.push_back(std::move(layout));
    return fmt::format("{}{}: {:.2f} instead of {:.2f} GiB; {}", flags, now, memory.peak() / gib,
                       memory_before.peak() / gib, fmt::join(all, "; "));
  }
};

class AdviceSearch {
 public:
  AdviceSearch(const Family& family, const Arguments& args)
      : family_(family), vocabulary_(planned_vocabulary(args)), before_(memory_of(args)) {}

  const RankMemory& before() const { return before_; }

  // What one more change of those in `from` makes of it, the least peak first.
  std::vector<Outcome> after_one_more(const Outcome& from) const {
    constexpr double worth_it = 0.98;
    std::vector<Outcome> found;
    const Advised now{family_, from.args, family_.plan(from.args, vocabulary_)};
    for (const Change& change : all_changes(now)) {
      Outcome next = from;
      change.apply(next.args);
      next.memory = memory_of(next.args);
      if (next.memory.peak() > worth_it * from.memory.peak()) continue;
      next.flags += (from.flags.empty() ? "" : " ") + change.flags;
      next.now = change.now;
      if (!change.cost.empty() && std::ranges::find(next.costs, change.cost) == next.costs.end())
        next.costs.push_back(change.cost);
      found.push_back(std::move(next));
    }
    std::ranges::stable_sort(found, {}, [](const Outcome& each) { return each.memory.peak(); });
    return found;
  }

 private:
  RankMemory memory_of(const Arguments& args) const {
    return largest_rank_memory(args, family_.plan(args, vocabulary_));
  }

  const Family& family_;
  int64_t vocabulary_;
  RankMemory before_;
};

// A size that was doubled several times is named once.
std::string last_of_each_flag(const std::string& flags) {
  std::vector<std::pair<std::string, std::string>> last;  // flag and value, in order of first mention
  for (const std::string& word : split(flags, ' ')) {
    if (word.starts_with("--")) {
      std::erase_if(last, [&](const auto& each) { return each.first == word; });
      last.emplace_back(word, "");
    } else if (!last.empty()) {
      last.back().second += " " + word;
    }
  }
  std::string text;
  for (const auto& [flag, value] : last) text += (text.empty() ? "" : " ") + flag + value;
  return text;
}

}  // namespace

std::vector<std::string> memory_advice(const Family& family, const Arguments& args) {
  const AdviceSearch search(family, args);
  std::vector<std::string> advice;
  for (const Outcome& each : search.after_one_more({.args = args, .memory = search.before()})) {
    if (advice.size() < most_advice) advice.push_back(each.text(args, search.before()));
  }
  return advice;
}

std::vector<std::string> memory_remedies(const Family& family, const Arguments& args, double bytes) {
  constexpr int most_changes = 6;
  const AdviceSearch search(family, args);
  Outcome so_far{.args = args, .memory = search.before()};
  for (int changes = 0; changes < most_changes; ++changes) {
    const std::vector<Outcome> next = search.after_one_more(so_far);
    std::vector<std::string> remedies;
    for (Outcome each : next) {
      if (each.memory.on_gpu() > bytes || remedies.size() == most_advice) continue;
      each.flags = last_of_each_flag(each.flags);
      each.now = {};  // the flags are to be copied
      remedies.push_back(each.text(args, search.before()));
    }
    if (!remedies.empty() || next.empty()) return remedies;
    so_far = next.front();
  }
  return {};
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
