// The part of a transformer layer that sees each token by itself: an MLP or experts.
#pragma once

#include "teratron/nn/layer.h"

namespace teratron {

class FeedForward {
 public:
  virtual ~FeedForward() = default;
  /// x [S, B, H] -> [S, B, H], S local under sequence parallelism.
  virtual at::Tensor forward(const at::Tensor& x_SBH, const LayerContext& context) = 0;
  /// residual + dropout(forward(x)); overridden where a GEMM adds the residual, or normalizes x.
  virtual Hidden forward_add_residual(const Normed& x_SBH, const ResidualDropout& residual,
                                      const LayerContext& context) {
    return {
        bias_dropout_add(forward(x_SBH.tensor(), context), nullptr, residual.residual_SBH, residual.dropout)};
  }
};

}  // namespace teratron
