// Costs of a norm (norm.h).
#pragma once

#include "teratron/kernels/norm/norm.h"
#include "teratron/nn/cost/rank_sizes.h"

namespace teratron {

/// A norm of hidden states, whose input is saved.
Operator norm_operator(std::string name, const NormOptions& options, const RankSizes& sizes);

}  // namespace teratron
