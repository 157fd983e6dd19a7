// Reductions over flat buffers (gradients) that leave their result on the device.
// x: any shape, contiguous; f32, bf16, f16, f64. Asynchronous on the current CUDA stream. Bitwise
// reproducible: the order of the additions depends on the size alone.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

/// sum of x^2 -> f64 scalar tensor []; inf or NaN when x holds one.
at::Tensor sum_of_squares(const at::Tensor& x);

/// Number of elements that equal 0 -> int64 scalar tensor [].
at::Tensor count_zeros(const at::Tensor& x);

/// flag (f32 [1]) <- 1 if any element of x is inf or NaN; otherwise it keeps its value.
void flag_nonfinite_(const at::Tensor& flag, const at::Tensor& x);

/// x <- x * factor, with the factor (f32 or f64 [1]) read from device memory.
void scale_(const at::Tensor& x, const at::Tensor& factor);

}  // namespace teratron
