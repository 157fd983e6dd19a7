// The branches of the usual layers, each with its mixer and its costs. A model whose layers have others gives
// its own LayerBranches, to its layers and to its planner alike:
//
//   std::vector<BranchOptions> branches(const TransformerConfig& config, int64_t layer) {
//     if (layer % 4 == 3) return {self_attention_branch(config, layer)};
//     return {{.norm = "norm", .part = "mixer", .mixer = ..., .operators = ...,
//              .dropout_site = dropout_site(config, layer, own_sites)}};
//   }
#pragma once

#include "teratron/models/transformer/layer_options.h"
#include "teratron/models/transformer/layer_stack.h"
#include "teratron/models/transformer/transformer_layer.h"

namespace teratron {

/// The branches of layer `layer`, which counts from 0 through the whole stack.
using LayerBranches =
    std::function<std::vector<BranchOptions>(const TransformerConfig& config, int64_t layer)>;

BranchOptions self_attention_branch(const TransformerConfig& config, int64_t layer);
BranchOptions cross_attention_branch(const TransformerConfig& config, int64_t layer);
/// An MLP, or experts where the configuration has them.
BranchOptions feed_forward_branch(const TransformerConfig& config, int64_t layer);
/// Self-attention, cross attention if the configuration has it, and the feed-forward network.
std::vector<BranchOptions> transformer_branches(const TransformerConfig& config, int64_t layer);

/// Creates the layers of a stack. `mesh`: of experts.
LayerFactory transformer_layers(const TransformerConfig& config, const TensorParallel& parallel,
                                const LayerBranches& branches = transformer_branches, const Mesh& mesh = {});

}  // namespace teratron
