#include "teratron/train/bert/bert_step.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

StepLoss BertTrainStep::forward_step(Model& model, const Activations& output, const MicroBatch& batch) {
  auto* const bert = dynamic_cast<Bert*>(&model);
  TERATRON_ASSERT(bert, "a BertTrainStep needs a Bert");
  return loss(bert->scores(output, batch), batch);
}

}  // namespace teratron
