// Contiguous parts of samples in place of the chunks that a context cut gives its ranks (context_cut.h): what
// recurrences over the tokens of all ranks need.
#pragma once

#include "teratron/nn/tokens/context_cut.h"

namespace teratron {

/// x [S, B, ...] of this rank's chunks -> those of its part: rank r has tokens r S to (r + 1) S of every
/// sample. Each token is sent once. Differentiable.
at::Tensor to_contiguous(const at::Tensor& x_SB, const ContextParallel& context);
/// The other way.
at::Tensor from_contiguous(const at::Tensor& x_SB, const ContextParallel& context);

}  // namespace teratron
