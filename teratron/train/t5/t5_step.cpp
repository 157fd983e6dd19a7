#include "teratron/train/t5/t5_step.h"

#include "teratron/base/error.h"
#include "teratron/models/t5/t5.h"

namespace teratron {

StepLoss T5TrainStep::forward_step(Model& model, const Activations& output, const MicroBatch& batch) {
  TERATRON_ASSERT(dynamic_cast<T5*>(&model), "a T5TrainStep needs a T5");
  return loss(model.token_losses(output, batch), batch);
}

}  // namespace teratron
