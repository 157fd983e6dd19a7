#include "teratron/models/transformer/transformer_layer.h"

#include <ATen/core/grad_mode.h>

#include "teratron/models/transformer/layer_options.h"
#include "teratron/nn/attention/attention_layer.h"
#include "teratron/nn/mlp.h"

namespace teratron {

MixerFactory experts_factory(const TransformerConfig& config, int64_t layer, const TensorParallel& parallel,
                             const Mesh& mesh) {
  if (!config.experts.in(layer)) return nullptr;
  return [&config, layer, &parallel, &mesh](const Scope& scope) {
    return std::make_unique<MoeLayer>(scope, moe_options(config, layer), parallel, mesh);
  };
}

TransformerLayer::TransformerLayer(const Scope& scope, const TransformerConfig& config, int64_t layer,
                                   const TensorParallel& parallel, const LayerParts& parts)
    : hidden_dropout_(config.hidden_dropout),
      residual_after_norm_(config.residual_after_norm),
      norm_outputs_(config.norm_outputs),
      side_by_side_(config.parallel_residual),
      site_(first_dropout_site(config, layer)),
      parallel_(parallel) {
  const auto add_branch = [&](const char* norm, DropoutSite site, const auto& make_mixer) {
    branches_.push_back({Norm(scope / norm, config.hidden, config.norm, parallel), nullptr, site_ + site});
    branches_.back().mixer = make_mixer();
  };
  add_branch("input_layernorm", attention_output, [&]() -> std::unique_ptr<Mixer> {
    const Scope own = scope / "self_attention";
    if (parts.attention) return parts.attention(own);
    return std::make_unique<SelfAttention>(own, self_attention_options(config, layer), parallel);
  });
  if (config.cross_attention) {
    add_branch("pre_cross_attn_layernorm", cross_output, [&] {
      return std::make_unique<CrossAttention>(scope / "cross_attention",
                                              cross_attention_options(config, layer), parallel);
    });
  }
  add_branch("pre_mlp_layernorm", mlp_output, [&]() -> std::unique_ptr<Mixer> {
    const Scope own = scope / "mlp";
    if (parts.feed_forward) return parts.feed_forward(own);
    return std::make_unique<Mlp>(own, mlp_options(config), parallel);
  });
}

// h = x, then for each branch h = h + dropout(mixer(norm(h))), or h + dropout(norm(mixer(h))). Side by side,
// all norms read x: y = x + dropout(attention(norm(x))) + dropout(mlp(norm(x))).
Hidden TransformerLayer::forward(const Hidden& x, const LayerContext& context, LayerState* state) {
  const auto* const states = static_cast<LayerStates*>(state);
  const size_t together = side_by_side_ ? branches_.size() : 1;
  Hidden h = x;
  for (size_t first = 0; first < branches_.size(); first += together) {
    std::vector<Input> inputs;
    for (size_t i = first; i < first + together; ++i) {
      inputs.push_back(read(branches_[i], h));
      h = {inputs.back().residual_SBH};
    }
    for (size_t i = first; i < first + together; ++i) {
      Input& input = inputs[i - first];
      input.residual_SBH = apply_bias_grad(h);
      h = add(branches_[i], input, context, states ? (*states)[i] : nullptr);
    }
  }
  return h;
}

TransformerLayer::Input TransformerLayer::read(Branch& branch, const Hidden& h) const {
  if (norm_outputs_) {  // in the weights' dtype; the residual may be fp32
    const at::Tensor h_SBH = apply_bias_grad(h);
    return {h_SBH.to(branch.norm.dtype()), h_SBH};
  }
  if (!at::GradMode::is_enabled() && !residual_after_norm_) return {branch.norm.deferred(h.x_SBH), h.x_SBH};
  const auto [normed, residual] = branch.norm.forward_with_residual(h);
  return {normed, residual_after_norm_ ? normed.to(residual.scalar_type()) : residual};
}

Hidden TransformerLayer::add(Branch& branch, const Input& input, const LayerContext& context,
                             LayerState* state) const {
  const DropoutArgs dropout = context.hidden_dropout(hidden_dropout_, branch.dropout_site, parallel_);
  if (!norm_outputs_)
    return branch.mixer->forward_add_residual(input.normed, {input.residual_SBH, dropout}, context, state);
  const ResidualDropout nothing{.dropout = context.hidden_dropout(0.0, site_, parallel_)};
  const Hidden mixed = branch.mixer->forward_add_residual(input.normed, nothing, context, state);
  return {bias_dropout_add(branch.norm.forward_with_residual(mixed).normed, nullptr, input.residual_SBH,
                           dropout)};
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
