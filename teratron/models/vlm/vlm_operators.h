// Costs of a language model that reads images.
#pragma once

#include "teratron/models/model_plan.h"
#include "teratron/models/vlm/vlm_config.h"

namespace teratron {

/// With one image in each sequence.
OperatorsOf vlm_operators(const VlmConfig& config);

}  // namespace teratron
