// Costs of an MLP (mlp.h).
#pragma once

#include "teratron/nn/cost/rank_sizes.h"
#include "teratron/nn/mlp.h"

namespace teratron {

/// Both GEMMs and the activation as one operator.
Operator mlp_operator(std::string name, const MlpOptions& options, const RankSizes& sizes);

}  // namespace teratron
