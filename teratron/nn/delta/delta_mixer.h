// The mixer of a layer of the gated delta net (kernels/delta/delta_core.h). Tensor-parallel by heads: q, k,
// v, z, b and a are cut separately, and no number depends on the cut.
#pragma once

#include "teratron/kernels/delta/delta_core.h"
#include "teratron/nn/recurrent/recurrent_mixer.h"

namespace teratron {

struct DeltaMixerOptions {
  int64_t hidden = 0;
  DeltaOptions core;  // of all ranks
  int64_t conv_kernel = 4;
  bool bias = false;  // of the projections
  Init in_init;
  Init out_init;
  bool passes_states = false;  // between context-parallel ranks, in place of heads
};

/// The sizes of one of `ranks`, which divides the heads of keys and values.
DeltaOptions delta_part(DeltaOptions core, int64_t ranks);

class DeltaMixer : public RecurrentMixer {
 public:
  DeltaMixer(const Scope& scope, const DeltaMixerOptions& options, const TensorParallel& parallel);
};

}  // namespace teratron
