// Operators of a GPT.
#pragma once

#include "teratron/models/gpt/gpt_config.h"
#include "teratron/models/operators.h"

namespace teratron {

OperatorsOf gpt_operators(const GPTConfig& config);

}  // namespace teratron
