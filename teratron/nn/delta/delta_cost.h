// What a mixer of the gated delta net computes, moves and saves on a rank (nn/cost/operator.h).
#pragma once

#include <string>
#include <vector>

#include "teratron/nn/cost/operator.h"
#include "teratron/nn/cost/rank_sizes.h"
#include "teratron/nn/delta/delta_mixer.h"

namespace teratron {

std::vector<Operator> delta_operators(const std::string& name, const DeltaMixerOptions& options,
                                      const RankSizes& sizes);

}  // namespace teratron
