// delta_core.h by the CUDA kernels of launchers.h. Internal to kernels.
#pragma once

#include "teratron/kernels/delta/delta_core.h"

namespace teratron::delta {

/// Whether the kernels take them: bf16 or f16 on a GPU of compute capability 8.0 or above, heads in packs of
/// eight channels, keys of up to 128, convolutions of two to four tokens.
bool fused_delta_supports(const DeltaInput& input, const DeltaWeights& weights, const DeltaOptions& options);

/// As delta_forward() and delta_backward(). Products in the input's dtype with sums in f32; the states are
/// kept in f32 from chunk to chunk of 64 tokens, and rounded as operands.
DeltaOutput fused_delta_forward(const DeltaInput& input, const DeltaWeights& weights,
                                const DeltaOptions& options);
DeltaGradients fused_delta_backward(const at::Tensor& dy_SB, const at::Tensor& drule, const DeltaInput& input,
                                    const DeltaWeights& weights, const DeltaOptions& options);

/// Whether the tables are in the dtype of the input, and in f32.
bool fused_delta_step_supports(const at::Tensor& qkvzba_R, const StateTables& tables,
                               const DeltaWeights& weights, const DeltaOptions& options);
at::Tensor fused_delta_step(const at::Tensor& qkvzba_R, const StateTables& tables,
                            const DeltaWeights& weights, const DeltaOptions& options);

}  // namespace teratron::delta
