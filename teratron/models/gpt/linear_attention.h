// Layers of a GPT, or of a hybrid, with a gated delta net in place of self-attention.
#pragma once

#include "teratron/models/transformer/transformer_layer.h"
#include "teratron/nn/delta/delta_mixer.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

DeltaMixerOptions delta_options(const Arguments& args, const TransformerConfig& config);
/// The norm and the mixer under the names of self-attention's.
BranchOptions delta_branch(const DeltaMixerOptions& options);

/// Whether context-parallel ranks pass the states of a recurrence on (--recurrent-cp-comm-type). `divides`:
/// they can divide its heads.
bool passes_states(const Arguments& args, bool divides);
/// With --experimental-attention-variant: the layers that have it get its branch in place of self-attention.
void add_linear_attention(TransformerConfig& config, const Arguments& args);
/// Family::Settings::derive: checks its settings against each other and the layout.
void derive_linear_attention(Validation& v);
/// The heads alone, for every model that has such layers.
void check_linear_heads(Validation& v);

}  // namespace teratron
