// Layer norm (Ba, Kiros, Hinton 2016) and RMS norm (Zhang, Sennrich 2019) over the last dimension, with the
// preceding residual addition fused.
//
//   h = x (+ added_bias) (+ residual)
//   layer:  mean = avg(h), rstd = 1 / sqrt(avg((h - mean)^2) + eps), xhat = (h - mean) rstd
//   rms:    rstd = 1 / sqrt(avg(h^2) + eps),                         xhat = h rstd
//   y = xhat * w (+ bias), with w = weight, or 1 + weight where `zero_centered` (Megatron-LM's layernorm-1p)
//
// Shapes: x, residual, y, h [..., n] contiguous; weight, bias, added_bias [n]; mean, rstd [T] with T =
// product of the leading dimensions. Dtypes: x, residual, added_bias and y in one of f32, bf16, f16, f64;
// weight and bias in that dtype or in f32; statistics and all arithmetic in f32 (f64 for f64). CPU and CUDA;
// asynchronous on the current CUDA stream. No autograd: nn wraps these. Bitwise reproducible.
#pragma once

#include "teratron/kernels/pointwise/activation.h"

namespace teratron {

enum class NormKind : uint8_t { layer, rms };

struct NormOptions {
  NormKind kind = NormKind::layer;
  double eps = 1e-5;
  bool zero_centered = false;
};

/// Gain and shift; bias may be undefined. Beside them where the backward may put their gradients (NormGradients tells where they
/// are, see SumInto), and whether it sums dx.
struct NormParameters {
  at::Tensor weight;
  at::Tensor bias;
  SumInto dweight_place = {};
  SumInto dbias_place = {};
  WantedSum dx_sum = std::nullopt;
};

/// What is added to x before it is normed; each may be undefined.
struct NormAddends {
  at::Tensor residual;
  at::Tensor bias;
};

struct NormOutput {
  at::Tensor y;
  at::Tensor sum;   // h; x itself (no copy) when nothing was added
  at::Tensor mean;  // undefined for rms
  at::Tensor rstd;
};

NormOutput norm_forward(const at::Tensor& x, const NormAddends& added, const NormParameters& parameters,
                        const NormOptions& options);

/// What the backward needs from the forward: h and its statistics.
struct NormSaved {
  at::Tensor sum;
  at::Tensor mean;
  at::Tensor rstd;
};

struct NormGradients {
  at::Tensor dx;       // gradient of h: of x and of the residual alike
  at::Tensor dweight;  // f32 [n] (f64 for f64)
  at::Tensor dbias;    // f32 [n]; undefined when there is no bias
  // f32 [n] if wanted: over rows of dx, the gradient of a bias added to h; before dx is rounded where that takes no pass of its
  // own.
  at::Tensor dx_sum;
};

/// dy [..., n]; `dresidual` (may be undefined) is the gradient that reaches h past the norm and is added to
/// dx:
///   dx = rstd (g - avg(g) [layer only] - xhat avg(g xhat)) + dresidual, with g = dy * w
///   dweight = sum over rows of dy * xhat, dbias = sum over rows of dy
NormGradients norm_backward(const at::Tensor& dy, const at::Tensor& dresidual, const NormSaved& saved,
                            const NormParameters& parameters, const NormOptions& options);

}  // namespace teratron
