// Costs of embeddings (embedding.h) and of biases by relative position (relative_position.h).
#pragma once

#include "teratron/nn/cost/rank_sizes.h"

namespace teratron {

/// Word embeddings, with what is added to them in place, and their dropout.
Operator embedding_operator(const RankSizes& sizes);

/// Biases by distance that the layers of one stack share. `heads`: of all ranks.
Operator relative_bias_operator(std::string name, int64_t heads, const RankSizes& sizes);

}  // namespace teratron
