// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019) over the last dimension.
#pragma once

#include <memory>

#include "teratron/kernels/norm/norm.h"
#include "teratron/nn/linear.h"

namespace teratron {

/// The parameters of a norm.
enum class NormWeights : uint8_t {
  all,      // a weight, and the bias of a LayerNorm
  no_bias,  // a weight
  none
};

class Norm {
 public:
  Norm(const Scope& scope, int64_t width, const NormOptions& options, const TensorParallel& parallel,
       NormWeights weights = NormWeights::all);
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
  std::unique_ptr<Parameter> constant_;  // in place of a weight
  Parameter* weight_;
  Parameter* bias_ = nullptr;  // LayerNorm only
};

}  // namespace teratron
