#include "teratron/megatron/export/core_tree.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

using Rows = std::vector<const MegatronRow*>;

Rows in_core_order(const std::vector<MegatronRow>& rows) {
  Rows ordered;
  for (const MegatronRow& row : rows) {
    ordered.push_back(&row);
    if (!row.before_previous) continue;
    TERATRON_ASSERT(ordered.size() > 1, "no row comes before {}", row.ours);
    std::swap(ordered.back(), ordered[ordered.size() - 2]);
  }
  return ordered;
}

bool is_of_experts(const MegatronRow* row) {
  return row->ours.find('#') != row->ours.npos;
}

std::string with_number(std::string_view ours, std::string_view number) {
  const size_t at = ours.find('#');
  return fmt::format("{}{}{}", ours.substr(0, at), number, ours.substr(at + 1));
}

// Collects the entries of one rank. `key` and `name` are what names begin with in the file and in the model.
class CoreEntries {
 public:
  CoreEntries(const WrittenModel& model, int64_t expert_rank)
      : model_(model), te_(model.names == MegatronNames::core_te), expert_rank_(expert_rank) {}

  bool has(const std::string& name) const { return model_.tensors->contains(name); }
  /// A tensor, or a weight and a bias, as far as the model has them. `number` ends keys of grouped experts.
  bool add(const std::string& key, const std::string& name, const std::string& number = "") {
    const size_t before = entries_.size();
    for (const char* part : name.ends_with('.') ? std::vector{"weight", "bias"} : std::vector{""}) {
      if (has(name + part)) entries_.push_back({{}, key + part + number, name + part});
    }
    return entries_.size() > before;
  }
  void add_entry(const std::string& key, const std::string& name) { entries_.push_back({{}, key, name}); }
  /// What parallel linear layers save for compatibility with FP8.
  void add_extra_state(const std::string& key) { add_entry(key + "_extra_state", ""); }
  void add_row(const MegatronRow& row, const std::string& key, const std::string& name) {
    const auto has_module = [&](std::string_view fused) {
      return has(name + std::string(fused.substr(0, fused.rfind('.') + 1)) + "weight");
    };
    const auto fused = te_ ? std::ranges::find_if(row.fused, has_module) : row.fused.end();
    const std::string own = key + std::string(fused == row.fused.end() ? row.ours : *fused);
    if (add(own, name + std::string(row.ours)) && row.linear) add_extra_state(own);
  }
  void add_layer(const Rows& rows, const std::string& key, const std::string& name);

  std::vector<MegatronEntry> take() { return std::move(entries_); }

 private:
  void add_experts(const Rows& rows, const std::string& key, const std::string& name);

  const WrittenModel& model_;
  bool te_;
  int64_t expert_rank_;
  std::vector<MegatronEntry> entries_;
};

// One module per expert and row, or, of grouped experts, one per row.
void CoreEntries::add_experts(const Rows& rows, const std::string& key, const std::string& name) {
  const auto router = model_.tensors->find(name + "mlp.router.weight");
  if (router == model_.tensors->end()) return;
  const int64_t here = router->second.shape.at(0) / model_.expert_ranks;
  const auto name_of = [&](const MegatronRow* row, int64_t expert) {
    return name + with_number(row->ours, std::to_string(expert_rank_ * here + expert));
  };
  for (int64_t e = 0; !te_ && e < here; ++e) {
    for (const MegatronRow* const row : rows) {
      const std::string own = key + with_number(row->ours, fmt::format("local_experts.{}", e));
      if (add(own, name_of(row, e))) add_extra_state(own);
    }
  }
  for (const MegatronRow* const row : te_ ? rows : Rows()) {
    std::string own = key + std::string(row->ours);
    own.erase(own.find("#."), 2);
    for (int64_t e = 0; e < here; ++e) add(own, name_of(row, e), std::to_string(e));
    add_extra_state(own);
  }
}

void CoreEntries::add_layer(const Rows& rows, const std::string& key, const std::string& name) {
  for (auto row = rows.begin(); row != rows.end();) {
    const auto end = std::find_if_not(row, rows.end(), is_of_experts);
    if (end != row) add_experts({row, end}, key, name);
    row = end;
    if (row != rows.end()) add_row(**row++, key, name);
  }
}

// What is written below beside the rows of a layer is GPT's: other families need other code here.
void check_shape(const MegatronModel& model) {
  const auto is_of_output = [](const MegatronRow& row) { return row.ours.starts_with("output_layer."); };
  TERATRON_ASSERT(model.stacks.size() == 1 && std::ranges::all_of(model.heads, is_of_output),
                  "models of {} are not one stack and an output layer", model.family);
}

}  // namespace

std::vector<MegatronEntry> core_entries(const WrittenModel& model, int64_t stage, int64_t expert_rank) {
  check_shape(*model.model);
  CoreEntries entries(model, expert_rank);
  const int64_t stages = model.stages.stages, each = model.stages.layers[0] / stages;
  const MegatronStack& stack = model.model->stacks[0];
  const Rows rows = in_core_order(stack.layer);
  if (stage == 0) {
    for (const MegatronRow& row : model.model->embeddings) entries.add_row(row, "", "");
  }
  for (int64_t i = 0; i < each; ++i)
    entries.add_layer(rows, fmt::format("{}.layers.{}.", stack.ours, i),
                      fmt::format("{}.layers.{}.", stack.ours, stage * each + i));
  if (stage < stages - 1) return entries.take();
  const std::string norm = fmt::format("{}.{}.", stack.ours, stack.final_norm);
  entries.add(norm, norm);
  for (int64_t i = 0; entries.has(fmt::format("mtp.layers.{}.eh_proj.weight", i)); ++i) {
    const std::string depth = fmt::format("mtp.layers.{}.", i), layer = depth + "mtp_model_layer.";
    if (i == 0 && stages > 1)
      entries.add_entry("embedding.word_embeddings.weight", "embedding.word_embeddings.weight");
    for (const MegatronRow& row : model.model->mtp) {
      if (row.ours == "final_layernorm.") entries.add_layer(rows, layer, layer);
      entries.add_row(row, depth, depth);
    }
  }
  // A tied output layer has its own copy where the embedding is on another stage.
  const std::string output = "output_layer.weight";
  const bool tied = !entries.has(output);
  if (!tied || stages > 1) entries.add_entry(output, tied ? "embedding.word_embeddings.weight" : output);
  entries.add_extra_state("output_layer.");
  return entries.take();
}

}  // namespace teratron
