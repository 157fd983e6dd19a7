// Attention sinks (Xiao et al. 2024; gpt-oss): each head has a score s that takes part in the sum of
// the softmax without a value. No kernel is needed: of any attention with output y and log-sum-exp L,
//
//   y' = y sigmoid(L - s),   L' = log(exp(L) + exp(s)),   ds = -sum_i exp(s - L'_i) (dy_i . y'_i)
//
// and a backward that is given y' and L' returns the gradients of queries, keys and values.
#pragma once

#include "teratron/nn/attention/context_parallel/partial_attention.h"

namespace teratron {

/// y' of this dtype and L'. Queries without keys, whose y may be anything, give 0.
PartialAttention with_sinks(const PartialAttention& whole, const at::Tensor& sinks_N, at::ScalarType dtype);
/// ds, from y' and L'.
at::Tensor sinks_gradient(const PartialAttention& whole, const at::Tensor& dy_SBND,
                          const at::Tensor& sinks_N);

/// attention() of a request with sinks.
at::Tensor attention_with_sinks(const AttentionRequest& request);

}  // namespace teratron
