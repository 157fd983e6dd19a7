// A vision transformer with a classification head (Dosovitskiy et al. 2020): patches of an image become rows,
// bidirectional layers follow, and the head reads the class token's row.
//
//   x = [class | patches W + b] + positions
#pragma once

#include <memory>
#include <optional>

#include "teratron/models/classifier/classifier.h"
#include "teratron/models/model.h"
#include "teratron/models/transformer/layer_stack.h"
#include "teratron/models/vit/vit_config.h"
#include "teratron/nn/norm.h"

namespace teratron {

/// Columns (vit_schema()): pixel_values [B, channels, height, width] and sequence_index of the rows; labels
/// [B, 1], a class each.
class Vit : public Model {
 public:
  Vit(const VitConfig& config, const StageContext& part);

  Activations forward(const Activations& input, const MicroBatch& batch, LayerStates* states) override;
  std::vector<InferenceOutput> inference_outputs(const Activations& output) override {
    return {{.name = "logits", .tensor = output["logits"]}};
  }
  std::vector<LossTerm> losses(const Activations& output, const MicroBatch& batch) override;
  void set_activation_hook(const ActivationHook& hook) override;
  bool never_waits() const override { return true; }

 private:
  struct Linear {
    Parameter* weight = nullptr;
    Parameter* bias = nullptr;
  };
  struct Head {
    std::optional<Linear> in;  // with a tanh after it
    Linear out;
  };
  void create_embedding(const StageContext& part);
  void create_head(const StageContext& part);
  at::Tensor embed(const MicroBatch& batch, const LayerContext& context);
  at::Tensor logits_BK(const at::Tensor& hidden_SBH);

  VitConfig config_;
  TensorParallel parallel_;
  Parameter* class_token_ = nullptr;
  Linear patches_;
  Parameter* positions_ = nullptr;
  std::unique_ptr<LayerStack> layers_;
  std::unique_ptr<Norm> final_norm_;
  Head head_;
};

}  // namespace teratron
