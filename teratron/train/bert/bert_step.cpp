#include "teratron/train/bert/bert_step.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

StepLoss BertTrainStep::forward_step(Model& model, const Activations& output, const MicroBatch& batch) {
  auto* const bert = dynamic_cast<Bert*>(&model);
  TERATRON_ASSERT(bert, "a BertTrainStep needs a Bert");
  return loss(bert->scores(output, batch), batch);
}

std::vector<std::string> BertClassificationStep::metric_names() const {
  if (target_ != BertTarget::one_of) return {};
  return {"accuracy"};
}

StepLoss BertClassificationStep::forward_step(Model&, const Activations& output, const MicroBatch& batch) {
  const at::Tensor& logits_BK = output["logits"];
  TERATRON_ASSERT(logits_BK.defined(), "a BertClassificationStep needs a BertClassifier");
  const LossTerm term = loss(logits_BK, batch);
  if (target_ != BertTarget::one_of) return {.losses = {term}};
  const at::Tensor right_B =
      logits_BK.detach().argmax(1).eq(class_labels(batch["labels"], logits_BK.size(0)));
  return {.losses = {term}, .metrics = {right_B.sum().to(term.sum.scalar_type())}};
}

}  // namespace teratron
