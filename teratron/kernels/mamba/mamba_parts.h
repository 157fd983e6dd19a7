// The parts of Mamba-2's core (mamba_core.h), each with its backward, in plain tensor operations of any
// device; the gated delta net (kernels/delta) has some of them, too. All tensors are wide: f32, or f64.
// Sequences come first: [B, S, ...].
#pragma once

#include "teratron/kernels/mamba/mamba_core.h"

namespace teratron::mamba {

/// f32 of other dtypes than f64.
at::Tensor as_wide(const at::Tensor& x);
/// d silu(x) / dx.
at::Tensor silu_slope(const at::Tensor& x);

/// [B, S, ...] -> [B, count, chunk, ...], zeros after the last token.
at::Tensor cut_chunks(const at::Tensor& x_BS, int64_t chunk);

/// Which tokens of a chunk are of one document: bool. Tokens that fill up the last chunk belong to the last.
struct ChunkDocuments {
  ChunkDocuments(const at::Tensor& document_BS, int64_t chunk);
  at::Tensor within;       // bcts
  at::Tensor from_before;  // bct: the last token before the chunk, and t
  at::Tensor to_end;       // bct: t, and the chunk's last token
  at::Tensor through;      // bc: the last token before the chunk, and its last
};

/// The convolution's output before silu.
struct Convolution {
  /// `before` [B, W - 1, C]: the inputs before the first token; undefined: zeros. `document_SB`, `bias_C`:
  /// may be undefined.
  static Convolution of(const at::Tensor& x_BSC, const at::Tensor& before, const at::Tensor& document_SB,
                        const at::Tensor& weight_C1W, const at::Tensor& bias_C);

  at::Tensor input_BSC;     // W - 1 inputs before the first token, then all
  at::Tensor document_BS1;  // undefined: one
  at::Tensor weight_CW;
  at::Tensor bias_C;  // may be undefined

  at::Tensor forward() const;
  /// Its last W - 1 inputs.
  at::Tensor after() const;
  struct Gradients {
    at::Tensor dinput_BSC;  // without the inputs before the first token
    at::Tensor dweight_CW, dbias_C;
  };
  Gradients backward(const at::Tensor& dy_BSC) const;

 private:
  int64_t tokens() const { return input_BSC.size(1) - weight_CW.size(1) + 1; }
  /// The inputs `back` tokens before each, zero where they are of another document.
  at::Tensor shifted(int64_t back) const;
  at::Tensor within_document(const at::Tensor& x_BSC, int64_t back) const;
};

/// The recurrence S_t = exp(g_t) S_(t-1) + u_t B_t^T, y_t = S_t C_t of R = H / G heads in each group.
struct Scan {
  at::Tensor g_BSGR;   // logarithm of the decay, at most 0
  at::Tensor u_BSGRP;  // dt x
  at::Tensor B_BSGN, C_BSGN;
  at::Tensor document_BS;  // undefined: one
  at::Tensor state_BGRPN;  // before the first token; undefined: zeros
  int64_t chunk = 128;

  struct Output {
    at::Tensor y_BSGRP, state_BGRPN;
  };
  Output forward() const;
  struct Gradients {
    at::Tensor dg_BSGR, du_BSGRP, dB_BSGN, dC_BSGN, dstate_BGRPN;
  };
  /// `dstate` may be undefined.
  Gradients backward(const at::Tensor& dy_BSGRP, const at::Tensor& dstate_BGRPN) const;
};

/// The gate and the norm of each group.
struct GatedNorm {
  MambaGate gate = MambaGate::before_norm;
  at::Tensor y_BSGD, z_BSGD;  // D channels of each group
  at::Tensor weight_GD;       // undefined without a norm
  double eps = 1e-5;

  at::Tensor forward() const;
  struct Gradients {
    at::Tensor dy_BSGD, dz_BSGD, dweight_GD;
  };
  Gradients backward(const at::Tensor& dout_BSGD) const;
};

}  // namespace teratron::mamba
