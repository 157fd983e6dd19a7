// Train steps of BERT to derive from: get_batch(), forward_step(), loss(). Override what differs.
//
//   class Weighted : public BertTrainStep {
//     StepLoss loss(const BertScores& scores, const MicroBatch& batch) override {
//       ...
//     }
//   };
#pragma once

#include "teratron/models/bert/bert_classifier.h"
#include "teratron/train/train_step.h"

namespace teratron {

/// Pretraining of a Bert.
class BertTrainStep : public TrainStep {
 public:
  bool takes_packed_rows() const override { return typeid(*this) == typeid(BertTrainStep); }
  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) final;
  /// Of the predictions and sentence pairs. Default: the losses of Megatron-LM's BERT.
  virtual StepLoss loss(const BertScores& scores, const MicroBatch& batch) {
    return {.losses = bert_losses(scores, batch)};
  }
};

/// Classification and regression with a BertClassifier. Also logs the accuracy of one class per text.
class BertClassificationStep : public TrainStep {
 public:
  explicit BertClassificationStep(BertTarget target) : target_(target) {}
  std::vector<std::string> metric_names() const override;
  bool takes_packed_rows() const override { return typeid(*this) == typeid(BertClassificationStep); }
  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) override;
  /// Of logits [B, K] and the column labels. Default: classification_loss().
  virtual LossTerm loss(const at::Tensor& logits_BK, const MicroBatch& batch) {
    return classification_loss(logits_BK, batch["labels"], target_);
  }

 private:
  BertTarget target_;
};

}  // namespace teratron
