// mamba_core.h by the CUDA kernels of launchers.h. Internal to kernels.
#pragma once

#include "teratron/kernels/mamba/mamba_core.h"

namespace teratron::mamba {

/// Whether the kernels take them: bf16 or f16 on a GPU of compute capability 8.0 or above, heads and states
/// of up to 128 channels, in packs of eight, convolutions of two to four tokens.
bool fused_mamba_supports(const MambaInput& input, const MambaWeights& weights, const MambaOptions& options);

/// As mamba_forward() and mamba_backward(). Products in the input's dtype with sums in f32; the states
/// between chunks of 64 tokens are kept in f32, and rounded where outputs are computed from them.
MambaOutput fused_mamba_forward(const MambaInput& input, const MambaWeights& weights,
                                const MambaOptions& options);
MambaGradients fused_mamba_backward(const at::Tensor& dy_SB, const at::Tensor& dssm, const MambaInput& input,
                                    const MambaWeights& weights, const MambaOptions& options);

/// Whether the tables are in the dtype of the input, and in f32.
bool fused_mamba_step_supports(const at::Tensor& zxbcdt_R, const StateTables& tables,
                               const MambaWeights& weights, const MambaOptions& options);
at::Tensor fused_mamba_step(const at::Tensor& zxbcdt_R, const StateTables& tables,
                            const MambaWeights& weights, const MambaOptions& options);

}  // namespace teratron::mamba
