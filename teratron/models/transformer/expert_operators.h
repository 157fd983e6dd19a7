// The operators of experts (nn/moe), of operators.h.
#pragma once

#include "teratron/models/transformer/operators.h"

namespace teratron {

/// Router, dispatch, routed and shared experts of a layer, as one operator; before it the input that is saved
/// if the layer is recomputed. Loads are taken to be equal, and a capacity below the mean load to be used
/// up.
std::vector<Operator> experts_operators(const std::string& name, const TransformerConfig& config,
                                        const RankBatch& batch, int64_t layer);

}  // namespace teratron
