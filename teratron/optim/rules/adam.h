// AdamW (kernels/optimizer/optimizer_step.h): two moments, 8 bytes per parameter.
#pragma once

#include <memory>

#include "teratron/optim/optimizer_rule.h"

namespace teratron {

std::shared_ptr<const OptimizerRule> adam_rule(const AdamOptions& options = {});

}  // namespace teratron
