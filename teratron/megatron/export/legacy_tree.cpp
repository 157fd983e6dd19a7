#include "teratron/megatron/export/legacy_tree.h"

#include <string_view>

#include <fmt/format.h>

namespace teratron {

namespace {

constexpr std::string_view language_model = "language_model";

// Layers [begin, end) of a stack, and whether the final norm follows.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
  bool last = false;
};

// Collects the entries of one rank.
class EntryList {
 public:
  explicit EntryList(const WrittenModel& model) : model_(model) {}

  /// What the model has of a row outside of layers.
  void add(const MegatronRow& row) {
    std::vector<std::string> path;
    std::string_view key = row.legacy;
    for (size_t end = key.find('/'); end != key.npos; end = key.find('/')) {
      path.emplace_back(key.substr(0, end));
      key.remove_prefix(end + 1);
    }
    if (!row.legacy.empty()) add(path, std::string(key), row, "");
  }

  void add_stack(const MegatronStack& stack, Span layers) {
    const std::vector<std::string> path = {std::string(language_model), std::string(stack.legacy)};
    for (int64_t i = layers.begin; i < layers.end; ++i) {
      for (const MegatronRow& row : stack.layer) {
        if (row.legacy.empty()) continue;
        add(path, fmt::format("layers.{}.{}", i - layers.begin, row.legacy), row,
            fmt::format("{}.layers.{}.", stack.ours, i));
      }
    }
    if (layers.last) add(path, "final_norm.", {"final_layernorm."}, std::string(stack.ours) + ".");
  }

  std::vector<MegatronEntry> take() { return std::move(entries_); }

 private:
  // Weight and bias, as far as the model has them, under keys that begin with `key`.
  void add(const std::vector<std::string>& path, std::string key, const MegatronRow& row,
           const std::string& prefix) {
    if (model_.names == MegatronNames::legacy_v2) key = in_v2(std::move(key));
    const std::string ours = prefix + std::string(row.ours);
    const std::vector<std::string> parts =
        ours.ends_with('.') ? std::vector<std::string>{"weight", "bias"} : std::vector<std::string>{""};
    bool any = false;
    for (const std::string& part : parts) {
      if (!model_.tensors->contains(ours + part)) continue;
      entries_.push_back({path, key + part, ours + part});
      any = true;
    }
    if (any && row.linear && model_.names == MegatronNames::legacy_core)
      entries_.push_back({path, key.substr(0, key.rfind('.') + 1) + "_extra_state", ""});
  }

  static std::string in_v2(std::string key) {
    constexpr std::string_view norm = "norm.";
    if (key == norm || key.ends_with("_norm.")) key.insert(key.size() - norm.size(), "layer");
    return key;
  }

  const WrittenModel& model_;
  std::vector<MegatronEntry> entries_;
};

Span share(int64_t layers, int64_t stage, int64_t stages) {
  const int64_t each = layers / stages;
  return {stage * each, (stage + 1) * each, stage == stages - 1};
}

}  // namespace

std::vector<MegatronEntry> legacy_entries(const WrittenModel& written, int64_t stage) {
  const MegatronModel& model = *written.model;
  const MegatronStages& stages = written.stages;
  const int64_t first_end = stages.first_end();
  const bool last = stage == stages.stages - 1;
  const bool with_embedding = stage == 0 || stage == first_end;
  EntryList list(written);
  const auto add_heads = [&](bool inside) {
    for (const MegatronRow& row : model.heads) {
      if (last && row.legacy.starts_with(language_model) == inside) list.add(row);
    }
  };
  if (with_embedding) {
    for (const MegatronRow& row : model.embeddings) list.add(row);
  }
  if (stage < first_end) list.add_stack(model.stacks[0], share(stages.layers[0], stage, first_end));
  add_heads(/*inside=*/true);
  if (model.stacks.size() > 1 && stage >= stages.split)
    list.add_stack(model.stacks[1],
                   share(stages.layers[1], stage - stages.split, stages.stages - stages.split));
  add_heads(/*inside=*/false);
  if (last && !with_embedding && !written.tensors->contains("output_layer.weight"))
    list.add({"embedding.word_embeddings.", "word_embeddings_for_head/"});
  return list.take();
}

}  // namespace teratron
