#include "teratron/models/transformer/transformer_layer_cost.h"

#include "teratron/models/transformer/layer_options.h"
#include "teratron/nn/attention/attention_cost.h"
#include "teratron/nn/cost/mlp_cost.h"
#include "teratron/nn/cost/norm_cost.h"
#include "teratron/nn/moe/moe_cost.h"

namespace teratron {

namespace {

PartOperators feed_forward_operators(const TransformerConfig& config, int64_t layer) {
  if (config.experts.in(layer)) {
    return [options = moe_options(config, layer)](const std::string& name, const RankSizes& sizes) {
      return moe_operators(name, options, sizes);
    };
  }
  return [options = mlp_options(config)](const std::string& name, const RankSizes& sizes) {
    return std::vector<Operator>{mlp_operator(name, options, sizes)};
  };
}

}  // namespace

std::vector<BranchCost> branch_costs(const TransformerConfig& config, int64_t layer, const PartCosts& parts) {
  const auto attention = [options = self_attention_options(config, layer)](const std::string& name,
                                                                           const RankSizes& sizes) {
    return self_attention_operators(name, options, sizes);
  };
  std::vector<BranchCost> branches = {
      {"input_layernorm", "self_attention", parts.attention ? parts.attention : attention}};
  if (config.cross_attention) {
    const auto cross = [options = cross_attention_options(config, layer)](const std::string& name,
                                                                          const RankSizes& sizes) {
      return cross_attention_operators(name, options, sizes);
    };
    branches.push_back({"pre_cross_attn_layernorm", "cross_attention", cross});
  }
  branches.push_back({"pre_mlp_layernorm", "mlp",
                      parts.feed_forward ? parts.feed_forward : feed_forward_operators(config, layer)});
  return branches;
}

HiddenStates hidden_states(const TransformerConfig& config) {
  return {.width = config.hidden, .fp32_residual = config.fp32_residual, .dropout = config.hidden_dropout};
}

std::vector<Operator> layer_operators(const std::string& name, const TransformerConfig& config,
                                      const RankBatch& batch, const std::vector<BranchCost>& branches) {
  const RankSizes sizes(hidden_states(config), batch);
  std::vector<Operator> all;
  const auto add_norm = [&](const BranchCost& branch) {
    all.push_back(norm_operator(name + "." + branch.norm, config.norm, sizes));
  };
  if (config.parallel_residual) {
    for (const BranchCost& branch : branches) {
      add_norm(branch);
      if (&branch != &branches.front()) all.back().add_saved(-sizes.residual_stream);  // the same input
    }
  }
  const bool norm_inputs = !config.parallel_residual && !config.norm_outputs;
  for (const BranchCost& branch : branches) {
    if (norm_inputs) add_norm(branch);
    append(all, branch.operators(name + "." + branch.part, sizes));
    if (config.norm_outputs) add_norm(branch);
  }
  return all;
}

}  // namespace teratron
