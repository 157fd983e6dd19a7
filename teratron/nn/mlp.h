// The MLP (feed-forward network) of a transformer block: fc2(activation(fc1(x))).
#pragma once

#include "teratron/kernels/pointwise/activation_kind.h"
#include "teratron/kernels/pointwise/glu_input.h"
#include "teratron/nn/feed_forward.h"

namespace teratron {

struct MlpOptions {
  int64_t hidden = 0;
  int64_t ffn_hidden = 0;
  int64_t out = 0;  // width of the result; 0: hidden
  Activation activation = Activation::gelu;
  bool bias = true;
  double gate_multiplier = 1.0;  // of fc1's gates, before a gated activation
  GluVariant glu = {};           // of SwiGLU
  Init fc1_init;
  Init fc2_init;
};

/// With a gated activation (SwiGLU, GEGLU) fc1 computes gate|up, each of ffn_hidden columns.
class Mlp : public FeedForward {
 public:
  Mlp(const Scope& scope, const MlpOptions& options, const TensorParallel& parallel);
  /// In FP8 with delayed scaling, the activation's output and the gradient of fc1's output are cast by the
  /// kernels that compute them.
  Hidden forward_add_residual(const Normed& x_SBH, const ResidualDropout& residual);
  at::Tensor forward(const at::Tensor& x_SBH) { return apply_bias_grad(forward_add_residual(x_SBH, {})); }

  // No token's output depends on the micro-batch.
  at::Tensor forward(const at::Tensor& x_SBH, const LayerContext& /*context*/) override {
    return forward(x_SBH);
  }
  Hidden forward_add_residual(const Normed& x_SBH, const ResidualDropout& residual,
                              const LayerContext& /*context*/, LayerState* /*state*/) override {
    return forward_add_residual(x_SBH, residual);
  }

 private:
  /// For gates and ups that change before the activation.
  Hidden forward_scaled(const at::Tensor& x_SBH, const ResidualDropout& residual);

  Activation activation_;
  double gate_multiplier_;
  GluVariant glu_;
  ColumnLinear fc1_;
  RowLinear fc2_;
};

}  // namespace teratron
