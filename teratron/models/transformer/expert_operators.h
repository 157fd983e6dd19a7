// The operator of experts (nn/moe), of operators.h.
#pragma once

#include "teratron/models/transformer/operators.h"

namespace teratron {

/// Router, dispatch, routed and shared experts of a layer. Loads are taken to be equal and nothing to be
/// dropped.
Operator experts_operator(std::string name, const TransformerConfig& config, const RankBatch& batch);

}  // namespace teratron
