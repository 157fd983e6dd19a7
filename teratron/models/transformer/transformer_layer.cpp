#include "teratron/models/transformer/transformer_layer.h"

#include <ATen/core/grad_mode.h>

#include "teratron/base/error.h"
#include "teratron/models/transformer/layer_options.h"
#include "teratron/nn/mlp.h"

namespace teratron {

namespace {

KeyValueCache* key_value_cache(LayerState* state) {
  if (!state) return nullptr;
  if (!std::holds_alternative<KeyValueCache>(*state)) state->emplace<KeyValueCache>();
  return &std::get<KeyValueCache>(*state);
}

}  // namespace

FeedForwardFactory experts_factory(const TransformerConfig& config, int64_t layer,
                                   const TensorParallel& parallel, const Mesh& mesh) {
  if (!config.experts.in(layer)) return nullptr;
  return [&config, layer, &parallel, &mesh](const Scope& scope) {
    return std::make_unique<MoeLayer>(scope, moe_options(config, layer), parallel, mesh);
  };
}

TransformerLayer::CrossBranch::CrossBranch(const Scope& scope, const TransformerConfig& config, int64_t layer,
                                           const TensorParallel& parallel)
    : norm(scope / "pre_cross_attn_layernorm", config.hidden, config.norm, parallel),
      attention(scope / "cross_attention", cross_attention_options(config, layer), parallel) {}

TransformerLayer::TransformerLayer(const Scope& scope, const TransformerConfig& config, int64_t layer,
                                   const TensorParallel& parallel,
                                   const FeedForwardFactory& make_feed_forward)
    : hidden_dropout_(config.hidden_dropout),
      residual_after_norm_(config.residual_after_norm),
      norm_outputs_(config.norm_outputs),
      parallel_residual_(config.parallel_residual),
      site_(first_dropout_site(config, layer)),
      parallel_(parallel),
      attention_norm_(scope / "input_layernorm", config.hidden, config.norm, parallel),
      attention_(scope / "self_attention", self_attention_options(config, layer), parallel),
      cross_(config.cross_attention ? std::make_unique<CrossBranch>(scope, config, layer, parallel)
                                    : nullptr),
      mlp_norm_(scope / "pre_mlp_layernorm", config.hidden, config.norm, parallel),
      mlp_(make_feed_forward ? make_feed_forward(scope / "mlp")
                             : std::make_unique<Mlp>(scope / "mlp", mlp_options(config), parallel)) {}

// h = x + dropout(attention(norm(x))), in a decoder h = h + dropout(cross_attention(norm(h), memory)),
// y = h + dropout(mlp(norm(h)))
Hidden TransformerLayer::forward(const Hidden& x, const LayerContext& context, LayerState* state) {
  KeyValueCache* const cache = key_value_cache(state);
  if (norm_outputs_) return forward_norm_outputs(x, context, cache);
  if (parallel_residual_) return forward_parallel(x, context, cache);
  const LayerInput attended = pre_norm(attention_norm_, x, context, site_ + attention_output);
  Hidden h = attention_.forward_add_residual(attended.normed, attended.residual, context, cache);
  if (cross_) {
    const LayerInput crossed = pre_norm(cross_->norm, h, context, site_ + cross_output);
    h = cross_->attention.forward_add_residual(crossed.normed.tensor(), crossed.residual, context, cache);
  }
  const auto [h_normed, h_residual] = pre_norm(mlp_norm_, h, context, site_ + mlp_output);
  return mlp_->forward_add_residual(h_normed, h_residual, context);
}

// h = x + dropout(norm(attention(x))), in a decoder likewise cross attention, y = h + dropout(norm(mlp(h)))
Hidden TransformerLayer::forward_norm_outputs(const Hidden& x, const LayerContext& context,
                                              KeyValueCache* cache) {
  const at::ScalarType narrow = attention_norm_.dtype();  // of the weights; the residual may be fp32
  const ResidualDropout branch{.dropout = context.hidden_dropout(0.0, site_, parallel_)};  // adds nothing
  const at::Tensor x_SBH = apply_bias_grad(x);
  at::Tensor h_SBH =
      add_normed(attention_norm_, attention_.forward_add_residual(x_SBH.to(narrow), branch, context, cache),
                 x_SBH, context, site_ + attention_output);
  if (cross_) {
    h_SBH = add_normed(cross_->norm,
                       cross_->attention.forward_add_residual(h_SBH.to(narrow), branch, context, cache),
                       h_SBH, context, site_ + cross_output);
  }
  return {add_normed(mlp_norm_, mlp_->forward_add_residual(h_SBH.to(narrow), branch, context), h_SBH, context,
                     site_ + mlp_output)};
}

// y = x + dropout(attention(norm(x))) + dropout(mlp(norm(x))), with two norms
Hidden TransformerLayer::forward_parallel(const Hidden& x, const LayerContext& context,
                                          KeyValueCache* cache) {
  TERATRON_ASSERT(!cross_, "a decoder layer with cross attention has no parallel form");
  const LayerInput attended = pre_norm(attention_norm_, x, context, site_ + attention_output);
  LayerInput fed = pre_norm(mlp_norm_, {attended.residual.residual_SBH}, context, site_ + mlp_output);
  const ResidualDropout residual{fed.residual.residual_SBH, attended.residual.dropout};
  fed.residual.residual_SBH =
      apply_bias_grad(attention_.forward_add_residual(attended.normed, residual, context, cache));
  return mlp_->forward_add_residual(fed.normed, fed.residual, context);
}

at::Tensor TransformerLayer::add_normed(Norm& norm, const Hidden& branch, const at::Tensor& residual_SBH,
                                        const LayerContext& context, uint64_t site) const {
  return bias_dropout_add(norm.forward_with_residual(branch).normed, nullptr, residual_SBH,
                          context.hidden_dropout(hidden_dropout_, site, parallel_));
}

TransformerLayer::LayerInput TransformerLayer::pre_norm(Norm& norm, const Hidden& x,
                                                        const LayerContext& context, uint64_t site) const {
  const DropoutArgs dropout = context.hidden_dropout(hidden_dropout_, site, parallel_);
  if (!at::GradMode::is_enabled() && !residual_after_norm_)
    return {.normed = norm.deferred(x.x_SBH), .residual = {.residual_SBH = x.x_SBH, .dropout = dropout}};
  const auto [normed, residual] = norm.forward_with_residual(x);
  return {.normed = normed,
          .residual = {.residual_SBH = residual_after_norm_ ? normed.to(residual.scalar_type()) : residual,
                       .dropout = dropout}};
}

}  // namespace teratron
