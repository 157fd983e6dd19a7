// The operators of one transformer layer (transformer_layer.h), of operators.h.
#pragma once

#include "teratron/models/transformer/operators.h"

namespace teratron {

/// Attention, dense MLP or experts, and norms of a layer, named `prefix`.*, in order.
std::vector<Operator> layer_operators(const std::string& prefix, const TransformerConfig& config,
                                      const RankBatch& batch, int64_t layer);

}  // namespace teratron
