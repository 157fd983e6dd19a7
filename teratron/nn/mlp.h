// The feed-forward half of a block: fc2(activation(fc1(x))).
#pragma once

#include "teratron/kernels/activation.h"
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
  /// x [S, B, H] -> [S, B, H] without fc2's bias.
  at::Tensor forward(const at::Tensor& x_SBH);
  /// residual + dropout(fc2(...) + its bias).
  at::Tensor forward_onto(const Residual& residual, const at::Tensor& x_SBH);
  Parameter* output_bias() { return fc2_.bias(); }

 private:
  at::Tensor activated(const at::Tensor& x_SBH);

  Activation activation_;
  ColumnLinear fc1_;
  RowLinear fc2_;
};

}  // namespace teratron
