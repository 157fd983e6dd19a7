// What a layer of Mamba-2 (Dao, Gu 2024, arXiv:2405.21060) computes between its two projections. Its input
// has the columns z | x | B | C | dt of d | d | G N | G N | H for H heads of P channels, d = H P, and G
// groups of heads that share B and C [N]:
//
//   x | B | C  <-  silu(causal depthwise convolution of W tokens of x | B | C, + bias)
//   dt = clamp(softplus(dt + dt_bias)),  a = exp(-exp(A_log) dt)
//   S_t = a_t S_(t-1) + dt_t x_t B_t^T,  y_t = S_t C_t + D x_t         for each head, S [P, N]
//   y = norm(y silu(z))                    RMS over the d / G channels of each group, times norm_weight
//
// Sequences are computed in chunks (section 6 of the paper): within a chunk as attention with decay, between
// chunks by the recurrence of S. Where documents are packed, state and convolution begin anew in each.
//
// Inputs f32, bf16, f16 or f64; arithmetic and states in f32 (f64 for f64). dt_bias, A_log and D are f32
// (f64) already. No autograd: nn/mamba wraps these functions. Nothing waits for the device.
//
// Fused kernels compute bf16 and f16 on GPUs from compute capability 8.0 on, for heads and states of up to
// 128 channels in multiples of 8 (fused_mamba.h); everything else is computed in tensor operations, far
// slower.
#pragma once

#include <limits>

#include "teratron/kernels/common/state_rows.h"

namespace teratron {

/// Where the gate silu(z) is applied.
enum class MambaGate : uint8_t {
  before_norm,  // Mamba-2
  after_norm,   // norm(y) silu(z)
  alone,        // y silu(z), without a norm
  none          // y: the input has no columns z, and mamba_gated_norm() follows elsewhere
};

/// Sizes are of the rank.
struct MambaOptions {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t groups = 0;
  int64_t state = 0;
  int64_t chunk = 128;
  double time_step_min = 0.0;
  double time_step_max = std::numeric_limits<double>::infinity();
  MambaGate gate = MambaGate::before_norm;
  double norm_eps = 1e-5;

  int64_t inner() const { return heads * head_dim; }
  /// Channels of the convolution: x | B | C.
  int64_t channels() const { return inner() + 2 * groups * state; }
  /// Columns of the input.
  int64_t width() const { return (gate == MambaGate::none ? 0 : inner()) + channels() + heads; }
};

struct MambaWeights {
  at::Tensor conv_weight;        // [channels, 1, W]
  at::Tensor conv_bias;          // [channels]; may be undefined
  at::Tensor dt_bias, A_log, D;  // [H]
  at::Tensor norm_weight;        // [d]; undefined with MambaGate::alone and none
};

/// What a sequence leaves for the tokens after it; undefined: zeros.
struct MambaStates {
  at::Tensor conv;  // [B, W - 1, channels]: the last inputs of the convolution
  at::Tensor ssm;   // [B, H, P, N]
};

/// B sequences of S tokens.
struct MambaInput {
  at::Tensor zxbcdt_SB;    // [S, B, width]
  at::Tensor document_SB;  // i64: equal for tokens of one document, which are consecutive; undefined: one
  MambaStates before = {};
};

struct MambaOutput {
  at::Tensor y_SB;  // [S, B, d], of the input's dtype
  MambaStates after;
};
MambaOutput mamba_forward(const MambaInput& input, const MambaWeights& weights, const MambaOptions& options);

struct MambaGradients {
  at::Tensor dzxbcdt_SB;  // of the input's dtype
  MambaWeights weights;   // f32 (f64)
  at::Tensor dssm;        // of the state before, [B, H, P, N]
};
/// Computes all that forward computed again. `dssm` (may be undefined): gradient of the state after the last
/// token.
MambaGradients mamba_backward(const at::Tensor& dy_SB, const at::Tensor& dssm, const MambaInput& input,
                              const MambaWeights& weights, const MambaOptions& options);

/// The last step alone: y and z [S, B, d], weight [d] -> [S, B, d]. `groups` and `gate` of the options count.
at::Tensor mamba_gated_norm(const at::Tensor& y_SB, const at::Tensor& z_SB, const at::Tensor& weight,
                            const MambaOptions& options);
struct MambaNormGradients {
  at::Tensor dy_SB, dz_SB;
  at::Tensor dweight;  // f32 (f64)
};
MambaNormGradients mamba_gated_norm_backward(const at::Tensor& dout_SB, const at::Tensor& y_SB,
                                             const at::Tensor& z_SB, const at::Tensor& weight,
                                             const MambaOptions& options);

/// forward() for one token of each of R sequences: zxbcdt [R, width] -> y [R, d]. States must be defined.
MambaOutput mamba_step(const at::Tensor& zxbcdt_R, const MambaStates& before, const MambaWeights& weights,
                       const MambaOptions& options);

/// mamba_step() on tables of states, in place: zxbcdt [R, width] -> y [R, d]. Recurrent: [rows, H, P, N].
at::Tensor mamba_step(const at::Tensor& zxbcdt_R, const StateTables& tables, const MambaWeights& weights,
                      const MambaOptions& options);

}  // namespace teratron
