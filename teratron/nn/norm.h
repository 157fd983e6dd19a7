// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019) over the last dimension.
#pragma once

#include "teratron/kernels/norm/norm.h"
#include "teratron/nn/linear.h"

namespace teratron {

class Norm {
 public:
  Norm(const Scope& scope, int64_t width, const NormOptions& options, const TensorParallel& parallel);
  /// x [..., width] -> the same shape in the weights' dtype; x may be wider. Statistics in fp32.
  at::Tensor forward(const at::Tensor& x);

  struct Output {
    at::Tensor normed;
    at::Tensor residual;  // x
  };
  /// norm(x), and x itself for a residual branch: backward adds both gradients and computes the bias gradient
  /// that is due in one pass.
  Output forward_with_residual(const Hidden& x);
  /// norm(x) without gradients, for a layer that may normalize x itself.
  Normed deferred(const at::Tensor& x_SBH) const;
  /// Dtype of the weights, hence of the outputs.
  at::ScalarType dtype() const { return weight_->tensor.scalar_type(); }

 private:
  NormOptions options_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;  // LayerNorm only
};

}  // namespace teratron
