// The output layer and the cross entropy of its logits, which are sharded by columns over the tensor-parallel
// ranks. One autograd function, so that the gradient of the logits is passed to the GEMMs directly, in FP8
// without an extra pass.
#pragma once

#include "teratron/nn/parallel_matmul.h"

namespace teratron {

struct OutputLossOptions {
  int64_t vocabulary = 0;     // logical size
  double softcap = 0.0;       // c: logits l are replaced by c tanh(l / c), in fp32; 0: none
  Parameter* bias = nullptr;  // [padded / tp] of the logits; null: none
};

/// c tanh(l / c), computed in fp32 (fp64 for fp64 logits); l itself for c = 0.
at::Tensor soft_capped_logits(const at::Tensor& logits, double softcap);

/// loss[s, b] = log(sum_v exp(logits[s, b, v])) - logits[s, b, target[s, b]], in fp32 (fp64 for fp64 logits),
/// logits = x W^T + bias, capped.
///
/// x [S, B, hidden] or this rank's sequence shard, `head` a column layer with W [padded / tp, hidden],
/// targets [S, B] with S global. Only the first `vocabulary` (global) of the padded columns count.
at::Tensor linear_cross_entropy(const at::Tensor& x_SBH, const ParallelMatmul& head,
                                const at::Tensor& targets_SB, const OutputLossOptions& options);

}  // namespace teratron
