// A train step of T5 to derive from: get_batch(), forward_step(), loss(). Override what differs.
//
//   class Weighted : public T5TrainStep {
//     StepLoss loss(const at::Tensor& losses_SB, const MicroBatch& batch) override {
//       ...
//     }
//   };
#pragma once

#include "teratron/train/engine/train_step.h"

namespace teratron {

class T5TrainStep : public TrainStep {
 public:
  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) final;
  /// The loss, from the losses of all labels of the decoder, padding included. Columns: t5.h. Default: the
  /// mean where the column loss_mask is set, as Megatron-LM's T5.
  virtual StepLoss loss(const at::Tensor& losses_SB, const MicroBatch& batch) {
    return {.losses = {masked_loss(losses_SB, batch["loss_mask"])}};
  }
};

}  // namespace teratron
