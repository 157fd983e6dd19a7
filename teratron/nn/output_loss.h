// The output layer with the cross entropy of its logits, whose columns are cut over the tensor-parallel ranks: one autograd
// function, so that the gradient of the logits goes into the products as they take it, in FP8 without a pass of its own.
#pragma once

#include "teratron/nn/parallel_matmul.h"

namespace teratron {

/// loss[s, b] = log(sum_v exp(logits[s, b, v])) - logits[s, b, target[s, b]], in fp32 (fp64 for fp64 logits),
/// logits = x W^T.
///
/// x [S, B, hidden] or this rank's part of it, `head` a column layer with W [padded / tp, hidden], targets [S, B] with S whole.
/// Of the padded columns only the first `vocabulary` (global) take part.
at::Tensor output_losses(const at::Tensor& x_SBH, const LinearCore& head, const at::Tensor& targets_SB,
                         int64_t vocabulary);

}  // namespace teratron
