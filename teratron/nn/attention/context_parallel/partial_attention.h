// Attention to some of the keys, in parts that are merged (kernels/attention/merge_attention.h), and the
// gradients of a part. Without autograd.
#pragma once

#include "teratron/nn/attention/attention.h"
#include "teratron/nn/attention/split_qkv.h"

namespace teratron {

struct PartialAttention {
  at::Tensor y_SBND;         // softmax over the keys of this part
  at::Tensor logsumexp_BNS;  // natural logarithm, f32 (f64 for f64); -inf for queries without keys
};

/// Computes a request without dropout, biases and soft cap. Backends are those of attention(), with math in
/// place of fused.
PartialAttention partial_attention(const AttentionRequest& request);
/// Gradients of the part's queries, keys and values, from y and its log-sum-exp over all keys and from dy.
/// cuDNN writes them into those tensors of `out` that are defined, and returns these; other backends return
/// new tensors, on CPUs possibly in a wider dtype.
QueryKeyValue partial_attention_backward(const AttentionRequest& request, const PartialAttention& whole,
                                         const at::Tensor& dy_SBND, const QueryKeyValue& out = {});

}  // namespace teratron
