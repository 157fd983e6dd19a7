// One transformer layer, pre-norm (Radford et al. 2019).
#pragma once

#include "teratron/models/transformer/config.h"
#include "teratron/nn/dropout.h"
#include "teratron/nn/mlp.h"
#include "teratron/nn/norm.h"
#include "teratron/nn/self_attention.h"

namespace teratron {

class Block {
 public:
  /// `layer` counts from 0 through the whole model.
  Block(const Scope& scope, const GPTConfig& config, int64_t layer, const TensorParallel& parallel);
  Hidden forward(const Hidden& x, const AttentionContext& context, KeyValueCache* cache);

 private:
  struct LayerInput {
    at::Tensor normed;
    ResidualDropout residual;  // of x, or of norm(x) with a post-layernorm residual
  };
  LayerInput pre_norm(Norm& norm, const Hidden& x, const AttentionContext& context, uint64_t site) const;

  double hidden_dropout_;
  bool residual_after_norm_;
  uint64_t site_;
  TensorParallel parallel_;
  Norm attention_norm_;
  SelfAttention attention_;
  Norm mlp_norm_;
  Mlp mlp_;
};

}  // namespace teratron
