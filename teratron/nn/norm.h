// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019) over the last dimension.
#pragma once

#include "teratron/kernels/norm/norm.h"
#include "teratron/nn/linear.h"

namespace teratron {

class Norm {
 public:
  Norm(const Scope& scope, int64_t width, const NormOptions& options, const TensorParallel& parallel);
  /// x [..., width] -> the same shape in the type of the weights; x may be wider. Statistics in fp32.
  at::Tensor forward(const at::Tensor& x);

  /// The normed x, and x itself for who else needs it (a residual connection): backward adds both gradients
  /// and sums what the stream's bias gets in one pass.
  struct Beside {
    at::Tensor normed;
    at::Tensor x;
  };
  Beside forward_beside(const Stream& x);

 private:
  NormOptions options_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;  // LayerNorm only
};

}  // namespace teratron
