// The state of Adam, named as in torch.optim and Megatron-LM.
#pragma once

#include "teratron/optim/rule_state.h"

namespace teratron {

inline constexpr RuleState adam_states[] = {{"exp_avg"}, {"exp_avg_sq"}};

}  // namespace teratron
