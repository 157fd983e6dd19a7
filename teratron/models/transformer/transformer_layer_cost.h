// Costs of a transformer layer (transformer_layer.h): those of its branches.
#pragma once

#include "teratron/models/transformer/transformer_layer.h"

namespace teratron {

/// The hidden states between the layers.
HiddenStates hidden_states(const TransformerConfig& config);

/// A layer of these branches, named `name`.*, in order of forward.
std::vector<Operator> layer_operators(const std::string& name, const TransformerConfig& config,
                                      const RankBatch& batch, const std::vector<BranchOptions>& branches);

}  // namespace teratron
