// Configuration of a model of Mamba-2 layers, or a hybrid: each layer is a mixer of Mamba-2, a gated delta
// net, attention, Mamba-2 and attention side by side, an MLP or experts.
#pragma once

#include "teratron/models/gpt/gpt_config.h"
#include "teratron/nn/delta/delta_mixer.h"
#include "teratron/nn/mamba/mamba_mixer.h"

namespace teratron {

/// From the command-line arguments. `tokenizer_size`: see gpt_config().
GPTConfig mamba_config(const Arguments& args, int64_t tokenizer_size);

/// See BranchOptions.
struct BranchMultipliers {
  double input = 1.0;
  double output = 1.0;
};

/// Options of the layers with a recurrence, whose width and initialisation follow from the model's.
struct HybridMixers {
  MambaMixerOptions mamba;
  DeltaMixerOptions delta;
  BranchMultipliers of_mamba = {};
  BranchMultipliers of_attention = {};
  BranchMultipliers of_mlp = {};
};
/// Gives the layers their kinds: a letter each (hybrid_pattern.h).
void make_hybrid(GPTConfig& config, const std::string& layers, HybridMixers mixers);

}  // namespace teratron
