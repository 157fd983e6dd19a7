// LLaVA (Liu et al. 2023): a language model in which rows of images take the place of some tokens.
//
//   rows = linear_2(gelu(linear_1(vision tower(pixels))))
//
// The tower and the projector are on the stage of the embedding. They run without sequence and context
// parallelism: each context-parallel rank computes the rows of all images, and takes those of its tokens.
#pragma once

#include <memory>
#include <vector>

#include "teratron/models/gpt/gpt.h"
#include "teratron/models/vlm/vision_model.h"
#include "teratron/models/vlm/vlm_config.h"
#include "teratron/nn/mlp.h"

namespace teratron {

/// Columns: GPT's, and on the first stage three more. image_rows [S, B]: the number of a token's row among
/// those of the images of its sample, -1 for text. images [B, 1]: the number of images. pixel_values [N,
/// channels, height, width]: those of all samples one after another, undefined without any. Without
/// image_rows the batch is text.
class Vlm : public Model {
 public:
  Vlm(const VlmConfig& config, const StageContext& part);

  Activations forward(const Activations& input, const MicroBatch& batch, LayerStates* states) override;
  std::unique_ptr<LayerStates> make_states() const override { return language_->make_states(); }
  at::Tensor logits(const Activations& output) override { return language_->logits(output); }
  at::Tensor token_losses(const Activations& output, const MicroBatch& batch) override {
    return language_->token_losses(output, batch);
  }
  void set_activation_hook(const ActivationHook& hook) override;
  at::Tensor image_rows(const at::Tensor& pixels_NCHW) override { return rows_of(pixels_NCHW, false); }

 private:
  at::Tensor rows_of(const at::Tensor& pixels_NCHW, bool training);
  MicroBatch with_rows(const MicroBatch& batch);
  at::Tensor zero_rows();

  VlmConfig config_;
  TensorParallel parallel_;  // of the tower
  std::unique_ptr<VisionModel> tower_;
  std::unique_ptr<Mlp> projector_;
  std::vector<Parameter*> image_parameters_;  // of both
  std::unique_ptr<GPT> language_;
};

}  // namespace teratron
