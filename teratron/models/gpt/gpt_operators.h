// Costs of a GPT.
#pragma once

#include "teratron/models/gpt/gpt_config.h"
#include "teratron/models/model_plan.h"

namespace teratron {

OperatorsOf gpt_operators(const GPTConfig& config);

}  // namespace teratron
