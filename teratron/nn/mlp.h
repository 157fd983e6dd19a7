// The feed-forward half of a block: fc2(activation(fc1(x))).
#pragma once

#include "teratron/kernels/pointwise/activation_kind.h"
#include "teratron/nn/linear.h"

namespace teratron {

struct MlpOptions {
  int64_t hidden = 0;
  int64_t ffn_hidden = 0;
  Activation activation = Activation::gelu;
  bool bias = true;
  Init fc1_init;
  Init fc2_init;
};

/// A gated activation (SwiGLU, GEGLU) takes gate|up, both of ffn_hidden columns.
class Mlp {
 public:
  Mlp(const Scope& scope, const MlpOptions& options, const TensorParallel& parallel);
  /// residual + dropout(fc2(activation(fc1(x)))) for x [S, B, H]. In FP8 with delayed scaling, the activation's result
  /// and the gradient of fc1's output are cast by the passes that compute them.
  Stream forward_onto(const Residual& residual, const at::Tensor& x_SBH);

 private:
  Activation activation_;
  ColumnLinear fc1_;
  RowLinear fc2_;
};

}  // namespace teratron
