#include "teratron/models/vlm/vlm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/nn/autograd/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A row of zeros, whose backward gives all parameters a gradient of zero.
struct ZeroRow : torch::autograd::Function<ZeroRow> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& anchor, int64_t width,
                            const std::vector<Parameter*>* parameters) {
    save_pointer(context, "parameters", parameters);
    return at::zeros({1, width}, anchor.options().requires_grad(false));
  }
  static variable_list backward(AutogradContext* context, variable_list /*gradients*/) {
    for (Parameter* const parameter : *saved_pointer<const std::vector<Parameter*>>(context, "parameters")) {
      accumulate_grad(*parameter, [](const at::Tensor& sum, bool add) {
        if (!add) sum.zero_();
      });
    }
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// A row's number among those of all samples.
at::Tensor global_rows(const MicroBatch& batch, int64_t rows_of_image) {
  const at::Tensor &rows_SB = batch["image_rows"], images_B = batch["images"].squeeze(1);
  const at::Tensor first_B = (images_B.cumsum(0) - images_B) * rows_of_image;
  return at::where(rows_SB.ge(0), rows_SB + first_B, rows_SB);
}

}  // namespace

Vlm::Vlm(const VlmConfig& config, const StageContext& part)
    : Model(part.stage), config_(config), parallel_{.group = part.parallel.group} {
  const Scope root = Scope(part.parameters).without_lora();
  if (part.stage.embedding) {
    std::deque<Parameter>& all = part.parameters.all();
    const size_t before = all.size();
    if (!divides_tower(config.vision, parallel_.group.size)) parallel_ = {};
    tower_ = std::make_unique<VisionModel>(root / "vision_model", config.vision, part);
    const Scope projection = root / "vision_projection" / "encoder";
    projector_ = std::make_unique<Mlp>(config.projector_frozen ? projection.frozen() : projection,
                                       config.projector, parallel_);
    for (size_t i = before; i < all.size(); ++i) image_parameters_.push_back(&all[i]);
  }
  language_ = std::make_unique<GPT>(part.parameters, stage_config(config.language, part), part.stage,
                                    part.parallel, part.mesh);
}

at::Tensor Vlm::rows_of(const at::Tensor& pixels_NCHW, bool training) {
  const at::Tensor features_RF = tower_->forward(pixels_NCHW, training);
  return projector_->forward(features_RF.unsqueeze(1)).squeeze(1);
}

// In a micro-batch of text alone tower and projector have no gradient, and with a frozen language model the
// loss would have none either. Zeros keep the order in which buckets of gradients are complete.
at::Tensor Vlm::zero_rows() {
  const Parameter* trained = nullptr;
  for (const Parameter* const parameter : image_parameters_) {
    if (parameter->options.trainable) trained = parameter;
  }
  if (!trained || !at::GradMode::is_enabled()) return {};
  for (Parameter* const parameter : image_parameters_) register_use(*parameter);
  return ZeroRow::apply(trained->tensor, config_.language.hidden, &image_parameters_);
}

MicroBatch Vlm::with_rows(const MicroBatch& batch) {
  const at::Tensor &rows_SB = batch["image_rows"], &pixels_NCHW = batch["pixel_values"];
  MicroBatch own = batch;
  own.tensors.set("tokens", batch["tokens"].masked_fill(rows_SB.ge(0), 0));
  const bool has_images = pixels_NCHW.defined() && pixels_NCHW.size(0) > 0;
  own.tensors.set("inserted_RH", has_images ? rows_of(pixels_NCHW, batch.training) : zero_rows());
  own.tensors.set("inserted_row", global_rows(batch, config_.vision.rows()));
  return own;
}

Activations Vlm::forward(const Activations& input, const MicroBatch& batch, LayerStates* states) {
  const bool has_rows = stage().embedding && batch["image_rows"].defined();
  return language_->forward(input, has_rows ? with_rows(batch) : batch, states);
}

void Vlm::set_activation_hook(const ActivationHook& hook) {
  Model::set_activation_hook(hook);
  if (tower_) tower_->set_activation_hook(hook);
  language_->set_activation_hook(hook);
}

}  // namespace teratron
