// Attention in parts that are merged (partial_attention.h), as one function of autograd. Sinks take part
// once, after the merge (sinks.h).
#pragma once

#include <ATen/core/ivalue.h>

#include "teratron/nn/attention/context_parallel/partial_attention.h"

namespace teratron {

/// The parts of an attention; autograd keeps it until backward.
class MergedAttention : public torch::CustomClassHolder {
 public:
  /// Output and log-sum-exp over all keys.
  virtual PartialAttention forward(const QueryKeyValue& qkv) const = 0;
  virtual QueryKeyValue backward(const QueryKeyValue& qkv, const PartialAttention& whole,
                                 const at::Tensor& dy_SBND) const = 0;
};

/// [S, B, N D]. Differentiable. `sinks_N` may be undefined.
at::Tensor merged_attention(const QueryKeyValue& qkv, const c10::intrusive_ptr<MergedAttention>& parts,
                            const at::Tensor& sinks_N = {});

/// The request's settings.
AttentionRequest without_tensors(AttentionRequest request);

}  // namespace teratron
