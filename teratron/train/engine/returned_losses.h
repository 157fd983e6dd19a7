// What a train step returns, which may be a program's.
#pragma once

#include "teratron/train/engine/train_step.h"

namespace teratron {

struct ReturnedCounts {
  int64_t losses = 0, metrics = 0;
};

/// UserError(config) for other counts, and for tensors of other than one element.
void check_returned(const StepLoss& result, const ReturnedCounts& expected);

}  // namespace teratron
