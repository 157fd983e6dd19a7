// SGD (kernels/optimizer/optimizer_step.h): a momentum buffer, 4 bytes per parameter, unless momentum is 0.
#pragma once

#include <memory>

#include "teratron/optim/optimizer_rule.h"

namespace teratron {

std::shared_ptr<const OptimizerRule> sgd_rule(double momentum);

}  // namespace teratron
