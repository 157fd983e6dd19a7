// Costs of a layer with experts (moe_layer.h).
#pragma once

#include "teratron/nn/cost/rank_sizes.h"
#include "teratron/nn/moe/moe_layer.h"

namespace teratron {

/// Router, dispatch, routed and shared experts as one operator. If the layer is recomputed, it is unit 0, and
/// its saved input comes before it. Loads are taken to be equal, and a capacity below the mean load is used
/// up.
std::vector<Operator> moe_operators(const std::string& name, const MoeOptions& options,
                                    const RankSizes& sizes);

}  // namespace teratron
