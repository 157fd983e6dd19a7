// Costs of the output layer with its loss (vocab_parallel_cross_entropy.h).
#pragma once

#include "teratron/nn/cost/rank_sizes.h"

namespace teratron {

struct OutputLayerOptions {
  int64_t width = 0;
  int64_t columns = 0;  // of all ranks
  int64_t chunks = 1;   // of the tokens, one after the other; backward computes the logits of each again
  bool fp8 = false;     // where the model is
};

/// The operator, or with several chunks for each its input and its operator.
std::vector<Operator> output_layer_operators(const OutputLayerOptions& options, const RankSizes& sizes);

}  // namespace teratron
