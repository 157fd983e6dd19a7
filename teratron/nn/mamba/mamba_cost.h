// Costs of a mixer of Mamba-2 (mamba_mixer.h).
#pragma once

#include "teratron/nn/cost/rank_sizes.h"
#include "teratron/nn/mamba/mamba_mixer.h"

namespace teratron {

std::vector<Operator> mamba_operators(const std::string& name, const MambaMixerOptions& options,
                                      const RankSizes& sizes);

}  // namespace teratron
