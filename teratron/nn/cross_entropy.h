// Cross entropy of logits whose vocabulary columns are cut over the tensor-parallel ranks.
#pragma once

#include <ATen/ATen.h>

#include "teratron/comm/mesh.h"

namespace teratron {

/// loss[s, b] = log(sum_v exp(logits[s, b, v])) - logits[s, b, target[s, b]], in fp32 (fp64 for fp64 logits).
///
/// logits [S, B, padded / tp]; of the padded columns only the first `vocabulary` (global) take part. The
/// gradient is written over the logits' memory: nothing else may use them after backward.
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits_SBV, const at::Tensor& targets_SB,
                                        int64_t vocabulary, const Group& group);

}  // namespace teratron
