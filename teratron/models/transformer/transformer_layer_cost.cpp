#include "teratron/models/transformer/transformer_layer_cost.h"

#include "teratron/base/error.h"
#include "teratron/nn/cost/norm_cost.h"

namespace teratron {

HiddenStates hidden_states(const TransformerConfig& config) {
  return {.width = config.hidden, .fp32_residual = config.fp32_residual, .dropout = config.hidden_dropout};
}

std::vector<Operator> layer_operators(const std::string& name, const TransformerConfig& config,
                                      const RankBatch& batch, const std::vector<BranchOptions>& branches) {
  const RankSizes sizes(hidden_states(config), batch);
  const bool side_by_side = config.parallel_residual;
  std::vector<Operator> all;
  const auto add_norm = [&](const std::string& norm) {
    if (!norm.empty()) all.push_back(norm_operator(name + "." + norm, config.norm, sizes));
  };
  for (size_t i = 0; side_by_side && i < branches.size(); ++i) {
    const size_t before = all.size();
    add_norm(branches[i].norm);
    if (before > 0 && all.size() > before) all.back().add_saved(-sizes.residual_stream);  // the same input
  }
  for (const BranchOptions& branch : branches) {
    if (!side_by_side) add_norm(branch.norm);
    TERATRON_ASSERT(branch.operators, "{}.{} does not state its operators", name, branch.part);
    append(all, branch.operators(name + "." + branch.part, sizes));
    add_norm(branch.output_norm);
  }
  return all;
}

}  // namespace teratron
