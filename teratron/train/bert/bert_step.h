// The train step of BERT to derive from: get_batch(), forward_step(), loss(). Override what differs.
//
//   class Weighted : public BertTrainStep {
//     StepLoss loss(const BertScores& scores, const MicroBatch& batch) override {
//       ...
//     }
//   };
#pragma once

#include "teratron/models/bert/bert.h"
#include "teratron/train/engine/train_step.h"

namespace teratron {

/// Pretraining of a Bert.
class BertTrainStep : public TrainStep {
 public:
  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) final;
  /// The losses of the predictions and the sentence pairs. Default: the losses of Megatron-LM's BERT.
  virtual StepLoss loss(const BertScores& scores, const MicroBatch& batch) {
    return {.losses = bert_losses(scores, batch)};
  }
};

}  // namespace teratron
