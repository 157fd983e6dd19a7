#pragma once

#include "teratron/kernels/mamba/mamba_core.h"
#include "teratron/nn/recurrent/recurrent_mixer.h"

namespace teratron {

struct MambaMixerOptions {
  int64_t hidden = 0;
  MambaOptions core;  // of all ranks
  int64_t conv_kernel = 4;
  bool conv_bias = true;
  bool bias = false;                     // of the projections
  std::vector<double> multipliers = {};  // of in_proj's z, x, B, C and dt; empty: none
  Init in_init;
  Init out_init;
  bool passes_states = false;  // between context-parallel ranks, in place of heads
  // Types of what generation keeps; nullopt: the model's, and that of the arithmetic.
  std::optional<at::ScalarType> conv_state_dtype = {};
  std::optional<at::ScalarType> ssm_state_dtype = {};
};

/// Rows of in_proj's weight, and channels of the convolution, which ranks cut separately.
std::vector<int64_t> mamba_segments(const MambaOptions& core);
std::vector<int64_t> mamba_conv_segments(const MambaOptions& core);
/// The sizes of one of `ranks`, which divides heads and groups.
MambaOptions mamba_part(MambaOptions core, int64_t ranks);
/// Whether context-parallel ranks can divide the heads of a tensor-parallel one.
bool divides_heads(const MambaOptions& core, int64_t ranks);

class MambaMixer : public RecurrentMixer {
 public:
  MambaMixer(const Scope& scope, const MambaMixerOptions& options, const TensorParallel& parallel);
};

}  // namespace teratron
