// The sizes that the FLOP formulas need, from a model's configuration.
#pragma once

#include "teratron/models/transformer/config.h"
#include "teratron/plan/flops.h"

namespace teratron {

ModelShape model_shape(const GPTConfig& config);

}  // namespace teratron
