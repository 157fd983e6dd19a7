// The optimizer rules of --optimizer.
#pragma once

#include "teratron/optim/optimizer_rule.h"
#include "teratron/settings/arguments.h"

namespace teratron {

OptimizerRules optimizer_rules(const Arguments& args);

}  // namespace teratron
