// What the reader of a run's report sees first.
#pragma once

#include "teratron/plan/flops.h"
#include "teratron/train/trainer.h"

namespace teratron {

/// The arithmetic for which a device's peak FLOP/s are quoted.
MathMode math_mode(const Arguments& args);

RunInfo run_info(const Trainer& trainer);

}  // namespace teratron
