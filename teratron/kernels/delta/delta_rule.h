// The gated delta rule (Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464): a recurrence whose state decays,
// and replaces what it answers to a key. Of a head with a state S [K, V], token by token,
//
//   q = q / |q|,  k = k / |k|,  S~ = e^g S,  S = S~ + beta k (v - S~^T k)^T,  y = K^-1/2 S^T q
//
// It is computed in chunks of tokens, by matrix products within a chunk and one update of S for each. With
// sums gamma of g within the chunk and Gamma_ij = e^(gamma_i - gamma_j),
//
//   A = strict_lower(beta_i (k_i . k_j) Gamma_ij),  U = (I + A)^-1 beta V,  W = (I + A)^-1 (beta e^gamma K)
//   V' = U - W S,  Y = K^-1/2 (e^gamma Q S + lower(Q K^T Gamma) V'),
//   S = e^gamma_c S + (e^(gamma_c - gamma) K)^T V'
//
// Where documents are packed, each begins with a state of zeros.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace teratron::delta {

/// B sequences of S tokens. H heads of queries and keys; each serves N / H heads of values that follow each
/// other. All f32, or f64. Nothing waits for the device.
struct DeltaRule {
  at::Tensor q_BSHK, k_BSHK;  // of any length
  at::Tensor v_BSNV;
  at::Tensor g_BSN;        // logarithm of the decay, at most 0
  at::Tensor beta_BSN;     // 0 to 1, or to 2: the state may change the sign of what it holds
  at::Tensor document_BS;  // equal for tokens of one document, which are consecutive; undefined: one
  at::Tensor state_BNKV;   // before the first token; undefined: zeros
  int64_t chunk = 64;      // tokens

  struct Output {
    at::Tensor y_BSNV, state_BNKV;
  };
  Output forward() const;
  struct Gradients {
    at::Tensor dq_BSHK, dk_BSHK, dv_BSNV, dg_BSN, dbeta_BSN, dstate_BNKV;
  };
  /// Computes all that forward computed again. `dstate` may be undefined.
  Gradients backward(const at::Tensor& dy_BSNV, const at::Tensor& dstate_BNKV) const;
};

}  // namespace teratron::delta
