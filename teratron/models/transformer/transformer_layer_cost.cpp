#include "teratron/models/transformer/transformer_layer_cost.h"

#include "teratron/base/error.h"
#include "teratron/nn/cost/linear_cost.h"
#include "teratron/nn/cost/norm_cost.h"

namespace teratron {

HiddenStates hidden_states(const TransformerConfig& config) {
  return {.width = config.hidden, .fp32_residual = config.fp32_residual, .dropout = config.hidden_dropout};
}

std::vector<Operator> layer_operators(const std::string& name, const TransformerConfig& config,
                                      const RankBatch& batch, const std::vector<BranchOptions>& branches) {
  const RankSizes sizes(hidden_states(config), batch);
  std::vector<Operator> all;
  const auto add_norm = [&](const std::string& norm) {
    if (!norm.empty()) all.push_back(norm_operator(name + "." + norm, config.norm, sizes));
  };
  const auto add_norms = [&](size_t first, size_t end) {
    const size_t before = all.size();
    for (size_t i = first; i < end; ++i) {
      const size_t norms = all.size();
      add_norm(branches[i].norm);
      if (norms > before && all.size() > norms)
        all.back().add_saved(-sizes.residual_stream);  // the same input
    }
  };
  const auto add_branch = [&](const BranchOptions& branch) {
    TERATRON_ASSERT(branch.operators, "{}.{} does not state its operators", name, branch.part);
    const size_t first = all.size();
    append(all, branch.operators(name + "." + branch.part, sizes));
    const bool shares = branch.input == BranchInput::same_normed && branch.input_multiplier == 1.0;
    if (shares && !sizes.batch.fp8)
      all.at(first).add_saved(-column_input(sizes, as_real(config.hidden), false));
    add_norm(branch.output_norm);
  };
  for (size_t first = 0, end = 0; first < branches.size(); first = end) {
    end = first + 1;
    while (end < branches.size() && branches[end].input != BranchInput::stream) ++end;
    add_norms(first, end);
    for (size_t i = first; i < end; ++i) add_branch(branches[i]);
  }
  return all;
}

}  // namespace teratron
