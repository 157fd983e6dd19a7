// Layer norm (Ba, Kiros, Hinton 2016) and RMS norm (Zhang, Sennrich 2019) over the last dimension, fused with
// the preceding residual addition.
//
//   h = x (+ added_bias) (+ residual)
//   layer:  mean = avg(h), rstd = 1 / sqrt(avg((h - mean)^2) + eps), xhat = (h - mean) rstd
//   rms:    rstd = 1 / sqrt(avg(h^2) + eps),                         xhat = h rstd
//   y = xhat * w (+ bias), with w = weight, or 1 + weight if `zero_centered` (Megatron-LM's layernorm-1p)
//
// Shapes: x, residual, y, h [..., n] contiguous; weight, bias, added_bias [n]; mean, rstd [T], T = product of
// the leading dimensions. Dtypes: x, residual, added_bias and y in one of f32, bf16, f16, f64; weight and
// bias in that dtype or f32; statistics and arithmetic in f32 (f64 for f64). CPU and CUDA; asynchronous on
// the current CUDA stream. No autograd: nn wraps these functions. Bitwise reproducible.
// Measurements: docs/notes/norm.md.
#pragma once

#include "teratron/kernels/pointwise/activation.h"

namespace teratron {

enum class NormKind : uint8_t { layer, rms };

struct NormOptions {
  NormKind kind = NormKind::layer;
  double eps = 1e-5;
  bool zero_centered = false;
};

struct NormParameters {
  at::Tensor weight;
  at::Tensor bias;  // may be undefined
  // Backward only:
  GradSink dweight_sink = {};
  GradSink dbias_sink = {};
  std::optional<GradSink> dx_sum_sink = std::nullopt;  // nullopt: dx is not summed
};

/// Added to x before normalization; each may be undefined.
struct NormAddends {
  at::Tensor residual;
  at::Tensor bias;
};

struct NormOutput {
  at::Tensor y;
  at::Tensor sum;   // h; x itself (no copy) if nothing was added
  at::Tensor mean;  // undefined for rms
  at::Tensor rstd;
};

NormOutput norm_forward(const at::Tensor& x, const NormAddends& added, const NormParameters& parameters,
                        const NormOptions& options);

/// Saved by the forward for the backward.
struct NormSaved {
  at::Tensor sum;
  at::Tensor mean;
  at::Tensor rstd;
};

struct NormGradients {
  at::Tensor dx;       // gradient of h, hence of x and of the residual
  at::Tensor dweight;  // f32 [n] (f64 for f64)
  at::Tensor dbias;    // f32 [n]; undefined without a bias
  // f32 [n] if requested: column sum of dx, the gradient of a bias added to h; taken before dx is rounded if
  // the backward can sum it in the same pass.
  at::Tensor dx_sum;
};

/// dy [..., n]; `dresidual` (may be undefined) is the gradient that reaches h around the norm:
///   dx = rstd (g - avg(g) [layer only] - xhat avg(g xhat)) + dresidual, with g = dy * w
///   dweight = sum over rows of dy * xhat, dbias = sum over rows of dy
NormGradients norm_backward(const at::Tensor& dy, const at::Tensor& dresidual, const NormSaved& saved,
                            const NormParameters& parameters, const NormOptions& options);

}  // namespace teratron
