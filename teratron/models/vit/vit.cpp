#include "teratron/models/vit/vit.h"

#include <ATen/ATen.h>

#include "teratron/models/transformer/image_patches.h"
#include "teratron/models/transformer/layer_context.h"
#include "teratron/models/transformer/select_positions.h"
#include "teratron/models/transformer/transformer_branches.h"

namespace teratron {

namespace {

constexpr double unlikely = -10.0;  // Megatron-LM's bias of each class before pretraining

}  // namespace

Vit::Vit(const VitConfig& config, const StageContext& part)
    : Model(part.stage), config_(config), parallel_(part.parallel) {
  if (part.stage.embedding) create_embedding(part);
  const Scope encoder = Scope(part.parameters) / "encoder";
  layers_ = std::make_unique<LayerStack>(encoder / "layers", config,
                                         LayerRange{part.stage.first_layer, part.stage.layers}, parallel_,
                                         transformer_layers(config, parallel_, part.mesh));
  if (!part.stage.head) return;
  final_norm_ = std::make_unique<Norm>(encoder / config.final_norm, config.hidden, config.norm, parallel_);
  create_head(part);
}

void Vit::create_embedding(const StageContext& part) {
  const Scope root(part.parameters);
  // Every tensor-parallel rank embeds whole images, and then keeps its shard of the rows.
  const AxisSet sums = parallel_.sequence_parallel ? AxisSet{Axis::tp} : AxisSet{};
  const auto add = [sums](const Scope& scope, const char* name, std::vector<int64_t> shape,
                          const Init& init) {
    return &scope.parameter(name,
                            {.shard = Shard::replicated(std::move(shape)), .init = init, .grad_sum = sums});
  };
  const int64_t h = config_.hidden;
  class_token_ = add(root, "class_token", {1, 1, h}, Init::zeros());
  const Scope conv = root / "conv1";
  patches_.weight =
      add(conv, "weight", {h, config_.channels, config_.patch, config_.patch}, weight_init(config_));
  patches_.bias = &conv.parameter(
      "bias",
      {.shard = Shard::replicated({h}), .param_group = ParamGroup::no_weight_decay, .grad_sum = sums});
  positions_ = add(root, "position_embeddings", {1, config_.rows(), h}, weight_init(config_));
}

void Vit::create_head(const StageContext& part) {
  const Scope head = Scope(part.parameters) / "classification_head";
  const auto linear = [&](const Scope& scope, int64_t out, const Init& weight, const Init& bias) {
    const ParameterOptions options{.shard = Shard::replicated({out, config_.hidden}), .init = weight};
    return Linear{&scope.parameter("weight", options),
                  &scope.parameter("bias", {.shard = Shard::replicated({out}),
                                            .init = bias,
                                            .param_group = ParamGroup::no_weight_decay})};
  };
  if (config_.head == VitConfig::HeadKind::linear) {
    const Init init = config_.finetunes ? Init::zeros() : weight_init(config_);
    head_.out = linear(head, config_.classes, init, Init::zeros());
    return;
  }
  head_.in = linear(head / "dense_in", config_.hidden, weight_init(config_), Init::zeros());
  head_.out = linear(head / "dense_out", config_.classes, weight_init(config_),
                     {.kind = Init::Kind::constant, .value = unlikely});
}

at::Tensor Vit::embed(const MicroBatch& batch, const LayerContext& context) {
  const at::Tensor patches_SBP =
      image_patches(batch["pixel_values"].to(patches_.weight->tensor.scalar_type()), config_.patch);
  at::Tensor x_SBH =
      at::linear(patches_SBP, autograd_tensor(*patches_.weight).flatten(1), autograd_tensor(*patches_.bias));
  x_SBH = at::cat({autograd_tensor(*class_token_).expand({1, x_SBH.size(1), x_SBH.size(2)}), x_SBH});
  x_SBH = parallel_.sequence_shard(x_SBH + autograd_tensor(*positions_).transpose(0, 1));
  if (config_.fp32_residual) x_SBH = x_SBH.to(at::kFloat);
  return bias_dropout_add(
      x_SBH, nullptr, at::Tensor(),
      context.hidden_dropout(config_.hidden_dropout, config_.first_dropout_site, parallel_));
}

at::Tensor Vit::logits_BK(const at::Tensor& hidden_SBH) {
  const at::Tensor first_1B =
      at::zeros({1, hidden_SBH.size(1)}, hidden_SBH.options().dtype(at::kLong).requires_grad(false));
  const auto apply = [](const Linear& linear, const at::Tensor& x) {
    return at::linear(x, autograd_tensor(*linear.weight), autograd_tensor(*linear.bias));
  };
  at::Tensor x_BH = select_positions(hidden_SBH, first_1B, parallel_)[0];
  if (head_.in) x_BH = apply(*head_.in, x_BH).tanh();
  return apply(head_.out, x_BH);
}

Activations Vit::forward(const Activations& input, const MicroBatch& batch, LayerStates*) {
  const LayerContext context = layer_context(batch, config_, nullptr);
  at::Tensor x_SBH = stage().embedding ? embed(batch, context) : input["hidden"];
  notify(stage().embedding ? "embedding" : "the previous stage", x_SBH, batch);
  const Hidden y = layers_->forward(std::move(x_SBH), context, nullptr);
  if (!final_norm_) return {{"hidden", apply_bias_grad(y)}};
  const at::Tensor normed_SBH = final_norm_->forward_with_residual(y).normed;
  notify("encoder.final_layernorm", normed_SBH, batch);
  return {{"logits", logits_BK(normed_SBH)}};
}

std::vector<LossTerm> Vit::losses(const Activations& output, const MicroBatch& batch) {
  return {classification_loss(output["logits"], batch["labels"], ClassifierTarget::one_of)};
}

void Vit::set_activation_hook(const ActivationHook& hook) {
  Model::set_activation_hook(hook);
  layers_->set_activation_hook(hook);
}

}  // namespace teratron
