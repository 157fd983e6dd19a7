// Costs of attention layers (attention_layer.h).
#pragma once

#include "teratron/nn/attention/attention_layer.h"
#include "teratron/nn/attention/choose_backend.h"
#include "teratron/nn/cost/rank_sizes.h"

namespace teratron {

/// What decides the backend of a layer's attention to so many keys.
AttentionShape attention_shape(const AttentionLayerOptions& options, const RankBatch& batch, int64_t keys);

/// Projections and attention, named `name`.*. Recomputation of the core is unit 0.
std::vector<Operator> self_attention_operators(const std::string& name, const AttentionLayerOptions& options,
                                               const RankSizes& sizes);

/// Operators of attention over the batch's memory, which something else saves: all layers share it.
std::vector<Operator> cross_attention_operators(const std::string& name, const AttentionLayerOptions& options,
                                                const RankSizes& sizes);

}  // namespace teratron
