// Costs of dropout (dropout.h) that layers share.
#pragma once

#include "teratron/nn/cost/rank_sizes.h"

namespace teratron {

/// Ids of the rows of hidden states, and with `score_heads` > 0 (of all ranks) those of scores, which key the
/// masks of all layers of a stack.
Operator dropout_rows_operator(std::string name, int64_t score_heads, const RankSizes& sizes);

}  // namespace teratron
