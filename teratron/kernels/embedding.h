// The gradient of a lookup in a table.
//
// sum [V, H]; ids int64 [T], each in [0, V): checked on CPU, undefined behaviour on the GPU; dy [T, H] contiguous in f32,
// bf16, f16 or f64. CPU and CUDA; asynchronous on the current CUDA stream. Bitwise reproducible.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

/// sum[ids[t]] += dy[t].
void add_rows_(const at::Tensor& sum, const at::Tensor& ids, const at::Tensor& dy);

}  // namespace teratron
