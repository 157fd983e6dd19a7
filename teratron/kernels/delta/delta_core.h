// What a layer of the gated delta net (Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464) computes between
// its two projections. Its input has the columns q | k | v | z | b | a of H K | H K | N V | N V | N | N, for
// H heads of queries and keys and N heads of values:
//
//   q | k | v  <-  silu(causal depthwise convolution of W tokens of q | k | v)
//   beta = sigmoid(b),  g = -exp(A_log) softplus(a + dt_bias)
//   y = the gated delta rule (delta_rule.h) of q, k, v, g, beta
//   y = norm(y) silu(z)                       RMS over the V channels of each head, times norm_weight
//
// Where documents are packed, state and convolution begin anew in each.
//
// Inputs f32, bf16, f16 or f64; arithmetic and states in f32 (f64 for f64). No autograd: nn/delta wraps these
// functions. Nothing waits for the device.
//
// Fused kernels compute bf16 and f16 on GPUs from compute capability 8.0 on, for keys of up to 128 channels,
// and keys and values in multiples of 8 (fused_delta.h); everything else is computed in tensor operations,
// far slower.
#pragma once

#include <cstdint>

#include "teratron/kernels/common/state_rows.h"

namespace teratron {

/// Sizes are of the rank.
struct DeltaOptions {
  int64_t key_heads = 0;
  int64_t value_heads = 0;  // a multiple of key_heads
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t chunk = 64;
  double beta_scale = 1.0;  // 2: the state may change the sign of what it holds
  double norm_eps = 1e-6;

  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
  /// Channels of the convolution: q | k | v.
  int64_t channels() const { return 2 * keys() + values(); }
  /// Columns of the input.
  int64_t width() const { return channels() + values() + 2 * value_heads; }
};

struct DeltaWeights {
  at::Tensor conv_weight;     // [channels, 1, W]
  at::Tensor dt_bias, A_log;  // [N]
  at::Tensor norm_weight;     // [V]
};

/// What a sequence leaves for the tokens after it; undefined: zeros.
struct DeltaStates {
  at::Tensor conv;  // [B, W - 1, channels]: the last inputs of the convolution
  at::Tensor rule;  // [B, N, K, V]
};

/// B sequences of S tokens.
struct DeltaInput {
  at::Tensor qkvzba_SB;    // [S, B, width]
  at::Tensor document_SB;  // i64: equal for tokens of one document, which are consecutive; undefined: one
  DeltaStates before = {};
};

struct DeltaOutput {
  at::Tensor y_SB;  // [S, B, N V], of the input's dtype
  DeltaStates after;
};
DeltaOutput delta_forward(const DeltaInput& input, const DeltaWeights& weights, const DeltaOptions& options);

struct DeltaGradients {
  at::Tensor dqkvzba_SB;  // of the input's dtype
  DeltaWeights weights;   // f32 (f64)
  at::Tensor drule;       // of the state before, [B, N, K, V]
};
/// Computes all that forward computed again. `drule` (may be undefined): gradient of the state after the last
/// token.
DeltaGradients delta_backward(const at::Tensor& dy_SB, const at::Tensor& drule, const DeltaInput& input,
                              const DeltaWeights& weights, const DeltaOptions& options);

/// One token of each of R sequences, on tables of states in place: qkvzba [R, width] -> y [R, N V].
/// Recurrent: [rows, N, K, V].
at::Tensor delta_step(const at::Tensor& qkvzba_R, const StateTables& tables, const DeltaWeights& weights,
                      const DeltaOptions& options);

}  // namespace teratron
