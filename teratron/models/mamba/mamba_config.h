// Configuration of a model of Mamba-2 layers, or a hybrid: each layer has one branch, a mixer of Mamba-2, a
// gated delta net, attention, an MLP or experts.
#pragma once

#include "teratron/models/gpt/gpt_config.h"
#include "teratron/nn/delta/delta_mixer.h"
#include "teratron/nn/mamba/mamba_mixer.h"

namespace teratron {

/// From the command-line arguments. `tokenizer_size`: see gpt_config().
GPTConfig mamba_config(const Arguments& args, int64_t tokenizer_size);

/// Options of the layers with a recurrence; their width and initialisation follow from the model's.
struct HybridMixers {
  MambaMixerOptions mamba;
  DeltaMixerOptions delta;
};
/// Gives the layers their kinds: a letter each (hybrid_pattern.h).
void make_hybrid(GPTConfig& config, const std::string& layers, HybridMixers mixers);

}  // namespace teratron
