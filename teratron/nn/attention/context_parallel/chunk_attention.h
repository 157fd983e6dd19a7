// Attention of a rank's two chunks of every sample over gathered keys (ContextParallelComm::all_gather).
//
// A chunk attends to the keys before it without a mask, and to its own with a causal one: blocks for which
// the fastest kernels exist, unlike for causal masks of more keys than queries. Outputs are merged, and
// gradients of keys summed, in fp32 (fp64).
#pragma once

#include "teratron/nn/attention/attention.h"

namespace teratron {

/// Attention of `rank`, whose queries are the chunks `rank` and 2 ranks - 1 - rank of the keys. A request
/// without dropout, biases, soft cap, segments and windows.
at::Tensor chunk_attention(const AttentionRequest& request, int64_t rank);

}  // namespace teratron
