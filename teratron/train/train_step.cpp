#include "teratron/train/train_step.h"

namespace teratron {

StepLoss TrainStep::loss(const at::Tensor& losses_SB, const MicroBatch& batch) {
  return {.loss = (losses_SB * batch.loss_mask_SB.to(losses_SB.scalar_type())).sum(),
          .count = batch.loss_mask_SB.sum()};
}

}  // namespace teratron
