// A vision tower: patches of images become rows, which bidirectional transformer blocks turn into features.
//
//   CLIP    x = norm([class | patches W] + positions)
//   SigLIP  x = patches W + b + positions
//
// Features are hidden states of some blocks. What comes after the last of these never runs: it has no
// gradient and no optimizer state, and is kept for checkpoints and export.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "teratron/models/model.h"
#include "teratron/models/transformer/layer_stack.h"
#include "teratron/models/vlm/vision_config.h"
#include "teratron/nn/norm.h"

namespace teratron {

class VisionModel {
 public:
  /// `part`: of the stage that has the tower.
  VisionModel(const Scope& scope, const VisionConfig& config, const StageContext& part);
  /// Pixels [N, channels, height, width], the same on all tensor-parallel ranks, as features
  /// [N * rows, features], image after image.
  at::Tensor forward(const at::Tensor& pixels_NCHW, bool training);
  void set_activation_hook(const ActivationHook& hook);

 private:
  at::Tensor embed(const at::Tensor& pixels_NCHW);
  /// Hidden states [S, N, width] by number, those that are read.
  std::vector<at::Tensor> hidden_states(const at::Tensor& pixels_NCHW, bool training);
  void create_unused(const Scope& scope, const StageContext& part);

  VisionConfig config_;
  TensorParallel parallel_;
  Parameter* class_token_ = nullptr;  // null: none
  Parameter* patch_weight_ = nullptr;
  Parameter* patch_bias_ = nullptr;  // null: none
  Parameter* positions_ = nullptr;
  std::unique_ptr<Norm> first_norm_;  // null: none
  /// Blocks up to the first hidden state that is read, from there to the second, and so on.
  std::vector<std::unique_ptr<LayerStack>> stacks_;
  std::unique_ptr<LayerStack> unused_stack_;
  std::unique_ptr<Norm> unused_norm_;
};

/// Whether the tensor-parallel ranks divide a tower of this configuration; else each has all of it.
bool divides_tower(const VisionConfig& config, int64_t ranks);

}  // namespace teratron
