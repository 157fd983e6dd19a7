// Fused embedding lookup-and-add, and the gradient of a lookup.
//
// table, sum [V, H], V up to 2^32 on the GPU; ids int64, each in [0, V): checked on CPU, undefined behaviour
// on the GPU; x, dy [T, H] contiguous in f32, bf16, f16 or f64. CPU and CUDA; asynchronous on the current
// CUDA stream. Bitwise reproducible.
// Measurements: docs/notes/pointwise.md.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

/// x[t] += table[ids[t / n]], rounded, for T / n contiguous ids; the table has x's dtype.
void embedding_add_(const at::Tensor& x, const at::Tensor& table, const at::Tensor& ids);

/// sum[ids[t]] += dy[t] for T ids.
void embedding_grad_add_(const at::Tensor& sum, const at::Tensor& ids, const at::Tensor& dy);

}  // namespace teratron
