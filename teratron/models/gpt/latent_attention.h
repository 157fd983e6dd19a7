// Multi-head latent attention of a GPT (nn/mla), by Megatron-LM's flags.
#pragma once

#include "teratron/models/transformer/config.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

/// Nothing without --multi-latent-attention.
void add_latent_attention(TransformerConfig& config, const Arguments& args);
/// What rules between two flags cannot say.
void check_latent_attention(Validation& v);

}  // namespace teratron
