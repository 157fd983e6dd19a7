// The product of a linear layer with what follows it.
//
// x [T, I], w [O, I], bias [O] or undefined, residual [T, O]; contiguous, of one float type. CPU and CUDA; asynchronous
// on the current CUDA stream. bf16 and f16 on a GPU: one GEMM of cuBLASLt, which rounds once.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

/// residual + x w^T + bias.
at::Tensor linear_add(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                      const at::Tensor& residual);

}  // namespace teratron
