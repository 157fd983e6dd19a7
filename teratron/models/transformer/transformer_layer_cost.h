// Costs of a transformer layer (transformer_layer.h): those of its branches, each a norm and a part.
#pragma once

#include <functional>

#include "teratron/models/transformer/config.h"
#include "teratron/nn/cost/rank_sizes.h"

namespace teratron {

/// The operators of a part of a layer, named `name`.*: a mixer or a feed-forward network.
using PartOperators = std::function<std::vector<Operator>(const std::string& name, const RankSizes& sizes)>;

struct BranchCost {
  std::string norm;  // names below the layer's
  std::string part;
  PartOperators operators;
};

/// What takes the place of self-attention, and of the MLP or experts, as LayerParts; null: nothing does.
struct PartCosts {
  PartOperators attention = nullptr;
  PartOperators feed_forward = nullptr;
};

/// Self-attention, cross attention and the MLP or experts of layer `layer`, which counts from 0 through the
/// whole stack.
std::vector<BranchCost> branch_costs(const TransformerConfig& config, int64_t layer,
                                     const PartCosts& parts = {});

/// The hidden states between the layers.
HiddenStates hidden_states(const TransformerConfig& config);

/// A layer of these branches, named `name`.*, in order of forward, with its norms where the configuration has
/// them.
std::vector<Operator> layer_operators(const std::string& name, const TransformerConfig& config,
                                      const RankBatch& batch, const std::vector<BranchCost>& branches);

}  // namespace teratron
