// The branches of the usual layers, each with its mixer and its costs. A model whose layers have others puts
// them into its configuration, where its layers and its planner find them:
//
//   config.branches = [](const TransformerConfig& config, int64_t layer) -> std::vector<BranchOptions> {
//     if (layer % 4 == 3) return {self_attention_branch(config, layer)};
//     return {{.norm = "norm", .part = "mixer", .mixer = ..., .operators = ..., .dropout = own_sites}};
//   };
#pragma once

#include "teratron/models/transformer/layer_options.h"
#include "teratron/models/transformer/layer_stack.h"
#include "teratron/models/transformer/transformer_layer.h"

namespace teratron {

BranchOptions self_attention_branch(const TransformerConfig& config, int64_t layer);
BranchOptions cross_attention_branch(const TransformerConfig& config, int64_t layer);
/// An MLP, or experts where the configuration has them.
BranchOptions feed_forward_branch(const TransformerConfig& config, int64_t layer);
/// Self-attention, cross attention if the configuration has it, and the feed-forward network.
std::vector<BranchOptions> transformer_branches(const TransformerConfig& config, int64_t layer);

/// The configuration's branches, else transformer_branches().
std::vector<BranchOptions> branches_of(const TransformerConfig& config, int64_t layer);

/// Creates the layers of a stack.
LayerFactory transformer_layers(const TransformerConfig& config, const TensorParallel& parallel,
                                const Mesh& mesh);

}  // namespace teratron
