#include "teratron/models/lora.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/models/finetuning.h"
#include "teratron/models/lora_names.h"
#include "teratron/models/mamba/hybrid_pattern.h"

namespace teratron {

namespace {

// The rows of an expert are on other ranks than the tokens by which dropout is keyed.
void check_expert_adapters(const Arguments& args, const LoraOptions& options) {
  if (!args.num_experts || options.dropout == 0.0) return;
  for (const std::string& target : options.targets) {
    if (!target.starts_with("linear_fc")) continue;
    throw config_error(
        {.what = fmt::format("{} is a layer of experts, whose adapters drop no inputs", target),
         .where = "--lora-dropout",
         .fix = "Leave it out, or use --lora-targets of the attention alone"});
  }
}

void add_mlp_targets(bool gated, std::vector<std::string>& targets) {
  targets.emplace_back("linear_fc2");
  if (gated) targets.insert(targets.end(), {"linear_fc1_gate", "linear_fc1_up"});
  if (!gated) targets.emplace_back("linear_fc1");
}

// Targets in the kinds of layers that a hybrid model has.
std::vector<std::string> hybrid_targets(const Arguments& args) {
  const std::string& layers = *args.hybrid_layer_pattern;
  const auto has = [&](char kind) { return layers.find(kind) != std::string::npos; };
  std::vector<std::string> targets;
  if (has_mamba(layers) || has(hybrid::delta)) targets.emplace_back("in_proj");
  if (has(hybrid::delta) && !has_mamba(layers)) targets.emplace_back("out_proj");  // PEFT refuses Mamba's
  if (has_attention(layers))
    targets.insert(targets.end(), {"linear_q", "linear_k", "linear_v", "linear_proj"});
  if (has(hybrid::mlp) && !args.num_experts) add_mlp_targets(args.swiglu || args.geglu, targets);
  return targets;
}

// As transformers holds them: decoders of GPT-2's kind have one projection for queries, keys and values.
std::vector<std::string> default_targets(const Arguments& args, const ModelPlan& model) {
  if (args.hybrid_layer_pattern) return hybrid_targets(args);
  const bool gated = args.swiglu || args.geglu || args.quick_geglu;
  const bool fused =
      model.towers.size() == 1 && model.towers[0].name == "decoder" && !gated && !args.multi_latent_attention;
  std::vector<std::string> targets = {"linear_proj"};
  if (fused) targets.emplace_back("linear_qkv");
  if (args.multi_latent_attention) {
    targets.insert(targets.end(), {"linear_kv_down_proj", "linear_kv_up_proj"});
    if (args.q_lora_rank) targets.insert(targets.end(), {"linear_q_down_proj", "linear_q_up_proj"});
    if (!args.q_lora_rank) targets.emplace_back("linear_q");
  } else if (!fused) {
    targets.insert(targets.end(), {"linear_q", "linear_k", "linear_v"});
  }
  if (args.experimental_attention_variant) targets.insert(targets.end(), {"in_proj", "out_proj"});
  if (!args.num_experts) add_mlp_targets(gated, targets);
  return targets;
}

}  // namespace

std::optional<LoraOptions> lora_options(const Arguments& args, const ModelPlan& model) {
  if (!args.lora_rank) return std::nullopt;
  LoraOptions options{.rank = *args.lora_rank,
                      .alpha = args.lora_alpha.value_or(static_cast<double>(*args.lora_rank)),
                      .dropout = args.lora_dropout};
  for (const std::string& name : args.lora_targets) {
    options.targets.push_back(lora_target(name));
    if (!options.targets.back().empty()) continue;
    throw config_error({.what = fmt::format("'{}' is not a linear layer", printable(name, 60)),
                        .where = "--lora-targets",
                        .fix =
                            "Use linear_qkv, or linear_q, linear_k and linear_v, linear_proj, linear_fc1, or "
                            "linear_fc1_gate and linear_fc1_up, linear_fc2, in_proj and out_proj"});
  }
  check_expert_adapters(args, options);
  if (options.targets.empty()) options.targets = default_targets(args, model);
  return options;
}

void freeze_base(ParameterSet& parameters) {
  for (Parameter& parameter : parameters.all()) {
    const std::string_view name = parameter.name;
    const auto begins = [name](std::string_view head) { return name.starts_with(head); };
    if (!is_lora(name) && std::ranges::none_of(added_heads, begins)) freeze(parameter);
  }
}

}  // namespace teratron
