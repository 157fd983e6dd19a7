#include "teratron/models/transformer/transformer_layer.h"

#include <set>

#include <ATen/core/grad_mode.h>

#include "teratron/base/error.h"
#include "teratron/models/transformer/transformer_branches.h"

namespace teratron {

namespace {

// Two dropouts of one number would drop the same elements.
void check_dropouts(const std::vector<BranchOptions>& branches) {
  std::set<uint64_t> taken = {attention_scores, cross_scores};
  for (const BranchOptions& branch : branches)
    TERATRON_ASSERT(taken.insert(branch.dropout).second, "branch '{}' has the dropout of another one",
                    branch.part);
}

}  // namespace

TransformerLayer::TransformerLayer(const Scope& scope, const TransformerConfig& config, int64_t layer,
                                   const TensorParallel& parallel, const Mesh& mesh)
    : hidden_dropout_(config.hidden_dropout),
      residual_after_norm_(config.residual_after_norm),
      dtype_(scope.options().dtype),
      parallel_(parallel) {
  const std::vector<BranchOptions> branches = branches_of(config, layer);
  if (hidden_dropout_ > 0.0) check_dropouts(branches);
  const auto norm = [&](const std::string& name) {
    return name.empty()
               ? std::nullopt
               : std::optional(Norm(scope / name, config.hidden, config.norm, parallel, config.norm_weights));
  };
  for (const BranchOptions& branch : branches) {
    branches_.push_back({norm(branch.norm), norm(branch.output_norm), nullptr,
                         dropout_site(config, layer, branch.dropout), branch.input, branch.input_multiplier,
                         branch.output_multiplier * config.residual_multiplier});
    branches_.back().mixer = branch.mixer(scope / branch.part, parallel, mesh);
  }
}

size_t TransformerLayer::end_of_group(size_t first) const {
  size_t end = first + 1;
  while (end < branches_.size() && branches_[end].input != BranchInput::stream) ++end;
  return end;
}

// h = x, then for each branch h = h + dropout(output_norm(mixer(norm(h)))). Side by side, all norms read x:
// y = x + dropout(attention(norm(x))) + dropout(mlp(norm(x))).
Hidden TransformerLayer::forward(const Hidden& x, const LayerContext& context, LayerState* state) {
  const auto* const states = static_cast<LayerStates*>(state);
  Hidden h = x;
  for (size_t first = 0, end = 0; first < branches_.size(); first = end) {
    end = end_of_group(first);
    std::vector<Input> inputs;
    for (size_t i = first; i < end; ++i) {
      inputs.push_back(branches_[i].input == BranchInput::same_normed ? inputs.back()
                                                                      : read(branches_[i], h));
      h = {inputs.back().residual_SBH};
    }
    for (size_t i = first; i < end; ++i) {
      Input& input = inputs[i - first];
      input.residual_SBH = apply_bias_grad(h);
      h = add(branches_[i], input, context, states ? (*states)[i] : nullptr);
    }
  }
  return h;
}

TransformerLayer::Input TransformerLayer::read(Branch& branch, const Hidden& h) const {
  if (!branch.norm) {  // in the weights' dtype; the residual may be fp32
    const at::Tensor h_SBH = apply_bias_grad(h);
    return {h_SBH.to(dtype_), h_SBH};
  }
  if (!at::GradMode::is_enabled() && !residual_after_norm_) return {branch.norm->deferred(h.x_SBH), h.x_SBH};
  const auto [normed, residual] = branch.norm->forward_with_residual(h);
  return {normed, residual_after_norm_ ? normed.to(residual.scalar_type()) : residual};
}

Hidden TransformerLayer::add(Branch& branch, const Input& input, const LayerContext& context,
                             LayerState* state) const {
  const auto dropout = [&](double rate) {
    return context.hidden_dropout(rate, branch.dropout_site, parallel_);
  };
  const double a = branch.input_multiplier, b = branch.output_multiplier;
  const Normed normed = a == 1.0 ? input.normed : Normed(input.normed.tensor() * a);
  if (!branch.output_norm && b == 1.0) {
    const ResidualDropout residual{input.residual_SBH, dropout(hidden_dropout_)};
    return branch.mixer->forward_add_residual(normed, residual, context, state);
  }
  const ResidualDropout nothing{.dropout = dropout(0.0)};
  const Hidden mixed = branch.mixer->forward_add_residual(normed, nothing, context, state);
  at::Tensor y_SBH =
      branch.output_norm ? branch.output_norm->forward_with_residual(mixed).normed : apply_bias_grad(mixed);
  if (b != 1.0) y_SBH = y_SBH * b;
  return {bias_dropout_add(y_SBH, nullptr, input.residual_SBH, dropout(hidden_dropout_))};
}

std::unique_ptr<LayerState> TransformerLayer::make_state() const {
  auto states = std::make_unique<LayerStates>();
  LayerState* before = nullptr;
  for (const Branch& branch : branches_) {
    std::unique_ptr<LayerState> state = branch.mixer->make_state(before);
    if (state) before = state.get();
    states->add(std::move(state));
  }
  return states;
}

}  // namespace teratron
