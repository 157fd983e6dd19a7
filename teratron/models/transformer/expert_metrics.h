// What is reported of layers with experts (nn/moe/statistics.h): per step the means of their losses, logged
// under Megatron-LM's names, and per layer
//
//   moe/expert_load     share of the processed tokens that each expert has
//   moe/drop_rate       share of the choices that were dropped
//   moe/router_entropy  entropy of the loads, divided by log E: 1 if all experts are used evenly
#pragma once

#include "teratron/models/model_plan.h"
#include "teratron/models/transformer/config.h"

namespace teratron {

/// None without experts.
LayerSums expert_sums(const ExpertsConfig& config);

}  // namespace teratron
