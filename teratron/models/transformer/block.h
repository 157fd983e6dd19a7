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
  Stream forward(const Stream& stream, const AttentionContext& context, KeyValueCache* cache);

 private:
  /// What goes past a layer, the stream itself or what its norm made of it, and the dropout where they meet.
  Residual residual(const Norm::Beside& stream, const AttentionContext& context, uint64_t site) const;

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
