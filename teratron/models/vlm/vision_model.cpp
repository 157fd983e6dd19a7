#include "teratron/models/vlm/vision_model.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "teratron/models/transformer/image_patches.h"
#include "teratron/models/transformer/transformer_branches.h"

namespace teratron {

namespace {

TensorParallel parallel_of(const VisionConfig& config, const TensorParallel& ranks) {
  if (!divides_tower(config, ranks.group.size)) return {};
  return {.group = ranks.group};  // sequences of patches have any length
}

std::vector<int64_t> sorted(const std::vector<int64_t>& layers) {
  const std::set<int64_t> ordered(layers.begin(), layers.end());
  return {ordered.begin(), ordered.end()};
}

// Squares of four rows of [N, rows, C]: their channels, those of a row of the square side by side.
at::Tensor shuffled(const at::Tensor& x_NRC, int64_t columns) {
  const int64_t images = x_NRC.size(0), channels = x_NRC.size(2), lines = x_NRC.size(1) / columns;
  return x_NRC.reshape({images, lines / 2, 2, columns / 2, 2, channels})
      .permute({0, 1, 3, 2, 4, 5})
      .reshape({images, x_NRC.size(1) / 4, 4 * channels});
}

}  // namespace

int64_t VisionConfig::used_blocks() const {
  return *std::ranges::max_element(feature_layers);
}

bool divides_tower(const VisionConfig& config, int64_t ranks) {
  return !config.replicated && config.blocks.heads % ranks == 0 && config.blocks.ffn_hidden % ranks == 0;
}

VisionModel::VisionModel(const Scope& scope, const VisionConfig& config, const StageContext& part)
    : config_(config), parallel_(parallel_of(config, part.parallel)) {
  const TransformerConfig& blocks = config.blocks;
  const Scope own = config.frozen ? scope.frozen() : scope;
  const auto parameter = [&](const Scope& at, const char* name, std::vector<int64_t> shape) {
    return &at.parameter(name, {.shard = Shard::replicated(std::move(shape)), .init = weight_init(blocks)});
  };
  const Scope conv = own / "conv1";
  if (config.kind == VisionConfig::Kind::clip) class_token_ = parameter(own, "class_token", {blocks.hidden});
  patch_weight_ = parameter(conv, "weight", {blocks.hidden, config.channels, config.patch, config.patch});
  if (config.kind == VisionConfig::Kind::siglip) {
    patch_bias_ = &conv.parameter(
        "bias", {.shard = Shard::replicated({blocks.hidden}), .param_group = ParamGroup::no_weight_decay});
  }
  positions_ = parameter(own / "position_embeddings", "weight", {config.positions(), blocks.hidden});
  if (config.kind == VisionConfig::Kind::clip)
    first_norm_ = std::make_unique<Norm>(own / "ln_pre", blocks.hidden, blocks.norm, parallel_);
  const Scope layers = own / "decoder" / "layers";
  int64_t first = 0;
  for (const int64_t end : sorted(config.feature_layers)) {
    stacks_.push_back(std::make_unique<LayerStack>(layers, blocks, LayerRange{first, end - first}, parallel_,
                                                   transformer_layers(blocks, parallel_, part.mesh)));
    first = end;
  }
  create_unused(scope.frozen(), part);
}

void VisionModel::create_unused(const Scope& scope, const StageContext& part) {
  const TransformerConfig& blocks = config_.blocks;
  const int64_t first = config_.used_blocks(), width = blocks.hidden;
  unused_stack_ = std::make_unique<LayerStack>(scope / "decoder" / "layers", blocks,
                                               LayerRange{first, blocks.layers - first}, parallel_,
                                               transformer_layers(blocks, parallel_, part.mesh));
  unused_norm_ = std::make_unique<Norm>(scope / "ln_post", width, blocks.norm, parallel_);
  if (!config_.has_head) return;
  const auto add = [&](const Scope& at, const char* name, std::vector<int64_t> shape, const Init& init) {
    at.parameter(name, {.shard = Shard::replicated(std::move(shape)), .init = init});
  };
  const auto add_linear = [&](const Scope& at, int64_t out, int64_t in) {
    add(at, "weight", {out, in}, weight_init(blocks));
    add(at, "bias", {out}, Init::zeros());
  };
  const Scope head = scope / "head", attention = head / "attention", mlp = head / "mlp";
  add(head, "probe", {1, 1, width}, weight_init(blocks));
  add(attention, "in_proj_weight", {3 * width, width}, weight_init(blocks));
  add(attention, "in_proj_bias", {3 * width}, Init::zeros());
  add_linear(attention / "out_proj", width, width);
  add(head / "layernorm", "weight", {width}, Init::ones());
  add(head / "layernorm", "bias", {width}, Init::zeros());
  add_linear(mlp / "fc1", blocks.ffn_hidden, width);
  add_linear(mlp / "fc2", width, blocks.ffn_hidden);
}

at::Tensor VisionModel::embed(const at::Tensor& pixels_NCHW) {
  const int64_t images = pixels_NCHW.size(0);
  const at::Tensor patches_SNP =
      image_patches(pixels_NCHW.to(patch_weight_->tensor.options().requires_grad(false)), config_.patch);
  at::Tensor x_SNH = at::matmul(patches_SNP, autograd_tensor(*patch_weight_).flatten(1).t());
  if (patch_bias_) x_SNH = x_SNH + autograd_tensor(*patch_bias_);
  if (class_token_)
    x_SNH = at::cat({autograd_tensor(*class_token_).expand({1, images, x_SNH.size(2)}), x_SNH});
  x_SNH = x_SNH + autograd_tensor(*positions_).unsqueeze(1);
  return first_norm_ ? first_norm_->forward(x_SNH) : x_SNH;
}

std::vector<at::Tensor> VisionModel::hidden_states(const at::Tensor& pixels_NCHW, bool training) {
  const LayerContext context{.training = training};
  std::vector<at::Tensor> states;
  at::Tensor x_SNH = embed(pixels_NCHW);
  for (const std::unique_ptr<LayerStack>& stack : stacks_) {
    x_SNH = apply_bias_grad(stack->forward(x_SNH, context, nullptr));
    states.push_back(x_SNH);
  }
  return states;
}

at::Tensor VisionModel::forward(const at::Tensor& pixels_NCHW, bool training) {
  const at::AutoGradMode grad(at::GradMode::is_enabled() && !config_.frozen);
  const std::vector<at::Tensor> states = hidden_states(pixels_NCHW, training);
  const std::vector<int64_t> numbers = sorted(config_.feature_layers);
  std::vector<at::Tensor> chosen;
  for (const int64_t layer : config_.feature_layers)
    chosen.push_back(states.at(std::ranges::find(numbers, layer) - numbers.begin()));
  at::Tensor x_NRF = (chosen.size() == 1 ? chosen[0] : at::cat(chosen, 2)).transpose(0, 1);
  if (config_.drops_first_row) x_NRF = x_NRF.narrow(1, 1, x_NRF.size(1) - 1);
  if (config_.pixel_shuffle) x_NRF = shuffled(x_NRF, config_.columns());
  return x_NRF.reshape({-1, x_NRF.size(2)});
}

void VisionModel::set_activation_hook(const ActivationHook& hook) {
  for (const std::unique_ptr<LayerStack>& stack : stacks_) stack->set_activation_hook(hook);
}

}  // namespace teratron
