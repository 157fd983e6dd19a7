// Reductions over flat buffers (gradients, shards of other ranks) whose result stays on the device. x: any
// shape, contiguous; f32, bf16, f16, f64. Asynchronous on the current CUDA stream. Bitwise reproducible: the
// order of additions depends only on the size.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace teratron {

/// sum of x^2 -> f64 scalar tensor []; inf or NaN if x contains one.
at::Tensor sum_of_squares(const at::Tensor& x);

/// Number of zeros -> int64 scalar tensor [].
at::Tensor count_zeros(const at::Tensor& x);

/// flag (f32 [1]) <- 1 if any element of x is inf or NaN; otherwise unchanged.
void flag_nonfinite_(const at::Tensor& flag, const at::Tensor& x);

/// x <- x * factor, with the factor (f32 or f64 [1]) read from device memory.
void scale_(const at::Tensor& x, const at::Tensor& factor);

/// out <- sum of the parts in order, or their average, rounded once. All have out's dtype and size; out may
/// be one of them. At most max_parts.
inline constexpr int64_t max_parts = 128;
void sum_parts_(const at::Tensor& out, const std::vector<at::Tensor>& parts, bool average);

}  // namespace teratron
