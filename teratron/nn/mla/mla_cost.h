// Costs of multi-head latent attention (latent_attention.h).
#pragma once

#include "teratron/nn/cost/rank_sizes.h"
#include "teratron/nn/mla/latent_attention.h"

namespace teratron {

/// Projections, norms and attention, named `name`.*. Recomputation of the core is unit 0.
std::vector<Operator> latent_attention_operators(const std::string& name,
                                                 const LatentAttentionOptions& options,
                                                 const RankSizes& sizes);

}  // namespace teratron
