#include "teratron/train/classification/classification_step.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

std::vector<std::string> ClassificationStep::metric_names() const {
  if (target_ != ClassifierTarget::one_of) return {};
  return {"accuracy"};
}

StepLoss ClassificationStep::forward_step(Model&, const Activations& output, const MicroBatch& batch) {
  const at::Tensor& logits_BK = output["logits"];
  TERATRON_ASSERT(logits_BK.defined(), "a ClassificationStep needs a BertClassifier");
  const LossTerm term = loss(logits_BK, batch);
  if (target_ != ClassifierTarget::one_of) return {.losses = {term}};
  const at::Tensor right_B =
      logits_BK.detach().argmax(1).eq(class_labels(batch["labels"], logits_BK.size(0)));
  return {.losses = {term}, .metrics = {right_B.sum().to(term.sum.scalar_type())}};
}

}  // namespace teratron
