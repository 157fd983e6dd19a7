// Attention over keys and values of other ranks that arrive block by block (ContextParallelComm::p2p).
//
// Rank r attends to its own block first; in step i to that of rank r - i, which is on its way during step
// i - 1. Blocks travel straight from their owner, and gradients of keys and values straight back: with the
// same traffic as around a ring, and rounded once.
//
//   source    queries          keys             mask
//   r         all              all              causal
//   < r       all              first chunks     none
//   > r       second chunks    all              none
//
// so that every step but the first costs all ranks the same. Without a causal mask each step has all queries
// and keys. Outputs are merged, and gradients summed, in
// fp32 (fp64).
#pragma once

#include "teratron/nn/attention/attention.h"
#include "teratron/nn/attention/context_parallel/context_parallel.h"

namespace teratron {

/// As context_parallel_attention(), of a request without dropout, biases, soft cap and windows.
at::Tensor ring_attention(const AttentionRequest& request, const ContextParallel& context);

}  // namespace teratron
