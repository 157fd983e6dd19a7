// The train step of a classifier (models/classifier/classifier.h) to derive from.
#pragma once

#include "teratron/models/classifier/classifier.h"
#include "teratron/train/engine/train_step.h"

namespace teratron {

/// Classification and regression with a BertClassifier. Also logs the accuracy of one class per text.
class ClassificationStep : public TrainStep {
 public:
  explicit ClassificationStep(ClassifierTarget target) : target_(target) {}
  std::vector<std::string> metric_names() const override;
  /// loss() sees one row per text.
  bool takes_packed_rows() const override { return true; }
  bool has_perplexity() const override { return target_ != ClassifierTarget::number; }
  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) override;
  /// The loss of logits [B, K] against the column labels. Default: classification_loss().
  virtual LossTerm loss(const at::Tensor& logits_BK, const MicroBatch& batch) {
    return classification_loss(logits_BK, batch["labels"], target_);
  }

 private:
  ClassifierTarget target_;
};

}  // namespace teratron
