#include "teratron/megatron/core_tree.h"

#include <string_view>

#include <fmt/format.h>

namespace teratron {

namespace {

// Collects the entries of one rank.
class CoreEntries {
 public:
  CoreEntries(const CoreModel& model, int64_t expert_rank)
      : model_(model), te_(model.names == MegatronNames::core_te), expert_rank_(expert_rank) {}

  bool has(const std::string& name) const { return model_.tensors->contains(name); }

  void add(const std::string& key, const std::string& name) {
    if (has(name)) entries_.push_back({{}, key, name});
  }
  /// Weight and bias, as far as the model has them; `key` may end with what precedes "weight".
  void add_module(const std::string& key, const std::string& name, const std::string& number = "") {
    for (const std::string part : {"weight", "bias"}) add(key + part + number, name + "." + part);
  }
  /// What parallel linear layers save for compatibility with FP8.
  void add_extra_state(const std::string& module) { entries_.push_back({{}, module + "._extra_state", ""}); }

  void add_linear(const std::string& key, const std::string& name) {
    add_module(key + ".", name);
    add_extra_state(key);
  }
  void add_layer(const std::string& key, const std::string& name);

  std::vector<MegatronEntry> take() { return std::move(entries_); }

 private:
  void add_norm(const std::string& key, const std::string& fused_into, const std::string& name) {
    add_module(te_ && !fused_into.empty() ? fused_into + ".layer_norm_" : key + ".", name);
  }
  void add_experts(const std::string& key, const std::string& name);

  const CoreModel& model_;
  bool te_;
  int64_t expert_rank_;
  std::vector<MegatronEntry> entries_;
};

// `key` and `name` end with "mlp".
void CoreEntries::add_experts(const std::string& key, const std::string& name) {
  const std::string weight = name + ".router.weight";
  const int64_t here = model_.tensors->at(weight).shape.at(0) / model_.expert_ranks;
  const auto expert = [&](int64_t number) {
    return fmt::format("{}.experts.{}", name, expert_rank_ * here + number);
  };
  add(key + ".router.weight", weight);
  add(key + ".router.bias", name + ".router.bias");
  add(key + ".router.expert_bias", name + ".router.expert_bias");
  for (const std::string linear : {".linear_fc1", ".linear_fc2"}) {
    for (int64_t e = 0; te_ && e < here; ++e)
      add_module(key + ".experts" + linear + ".", expert(e) + linear, std::to_string(e));
    if (te_) add_extra_state(key + ".experts" + linear);
  }
  for (int64_t e = 0; !te_ && e < here; ++e) {
    const std::string local = fmt::format("{}.experts.local_experts.{}", key, e);
    add_linear(local + ".linear_fc1", expert(e) + ".linear_fc1");
    add_linear(local + ".linear_fc2", expert(e) + ".linear_fc2");
  }
  if (!has(name + ".shared_experts.linear_fc1.weight")) return;
  add(key + ".shared_experts.gate_weight", name + ".shared_experts.gate_weight");
  add_linear(key + ".shared_experts.linear_fc1", name + ".shared_experts.linear_fc1");
  add_linear(key + ".shared_experts.linear_fc2", name + ".shared_experts.linear_fc2");
}

void CoreEntries::add_layer(const std::string& key, const std::string& name) {
  const std::string attention = ".self_attention.", qkv = attention + "linear_qkv";
  add_norm(key + ".input_layernorm", key + qkv, name + ".input_layernorm");
  add_linear(key + attention + "linear_proj", name + attention + "linear_proj");
  add_linear(key + qkv, name + qkv);
  for (const std::string norm : {"q_layernorm", "k_layernorm"})
    add_module(key + attention + norm + ".", name + attention + norm);
  const bool experts = has(name + ".mlp.router.weight");
  add_norm(key + ".pre_mlp_layernorm", experts ? "" : key + ".mlp.linear_fc1", name + ".pre_mlp_layernorm");
  if (experts) return add_experts(key + ".mlp", name + ".mlp");
  add_linear(key + ".mlp.linear_fc1", name + ".mlp.linear_fc1");
  add_linear(key + ".mlp.linear_fc2", name + ".mlp.linear_fc2");
}

}  // namespace

std::vector<MegatronEntry> core_entries(const CoreModel& model, int64_t stage, int64_t expert_rank) {
  CoreEntries entries(model, expert_rank);
  const int64_t stages = model.stages.stages, each = model.stages.layers[0] / stages;
  if (stage == 0) {
    entries.add_module("embedding.word_embeddings.", "embedding.word_embeddings");
    entries.add_module("embedding.position_embeddings.", "embedding.position_embeddings");
  }
  for (int64_t i = 0; i < each; ++i)
    entries.add_layer(fmt::format("decoder.layers.{}", i),
                      fmt::format("decoder.layers.{}", stage * each + i));
  if (stage < stages - 1) return entries.take();
  entries.add_module("decoder.final_layernorm.", "decoder.final_layernorm");
  // A tied output layer has its own copy where the embedding is on another stage.
  if (entries.has("output_layer.weight")) {
    entries.add("output_layer.weight", "output_layer.weight");
  } else if (stages > 1) {
    entries.add("output_layer.weight", "embedding.word_embeddings.weight");
  }
  entries.add_extra_state("output_layer");
  return entries.take();
}

}  // namespace teratron
