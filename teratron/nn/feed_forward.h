// The part of a layer that sees each token by itself: an MLP or experts.
#pragma once

#include "teratron/nn/mixer.h"

namespace teratron {

class FeedForward : public Mixer {
 public:
  /// x [S, B, H] -> [S, B, H], S local under sequence parallelism.
  virtual at::Tensor forward(const at::Tensor& x_SBH, const LayerContext& context) = 0;
  /// Overridden where a GEMM adds the residual, or normalizes x.
  Hidden forward_add_residual(const Normed& x_SBH, const ResidualDropout& residual,
                              const LayerContext& context, LayerState* /*state*/) override {
    return {
        bias_dropout_add(forward(x_SBH.tensor(), context), nullptr, residual.residual_SBH, residual.dropout)};
  }
};

}  // namespace teratron
