// GEMMs of rows in groups, each group with a separate weight (experts), on compute capability 9.0:
//
//   y_r = x_r W_g^T        dx_r = dy_r W_g        dW_g (+)= sum_r dy_r^T x_r        r: row of group g
//
// Group g is the rows [ends[g - 1], ends[g]), which only the device knows: the host never waits. bf16
// operands, sums in f32; results do not depend on the other groups. Rows from the last end on may hold
// anything; in results they are not written. Bitwise reproducible.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

/// Whether the kernels multiply such rows [R, .] by such weights [G, O, I]: bf16, contiguous rows and
/// weights, O and I multiples of 8, 16-byte alignment, at most 1024 groups. Weights may be further apart than
/// O I.
bool fits_grouped_gemm(const at::Tensor& rows, const at::Tensor& w_GOI);

/// x [R, I], w [G, O, I], ends i32 [G] -> [R, O].
at::Tensor grouped_gemm_forward(const at::Tensor& x_RI, const at::Tensor& w_GOI, const at::Tensor& ends_G);
/// dy [R, O] -> [R, I].
at::Tensor grouped_gemm_input_gradient(const at::Tensor& dy_RO, const at::Tensor& w_GOI,
                                       const at::Tensor& ends_G);
/// Whether the kernel can accumulate into these gradients, f32, with rows as above.
bool fits_weight_gradient(const at::Tensor& sum_GOI, const at::Tensor& dy_RO, const at::Tensor& x_RI);
/// Overwrites `sum`, or adds to it.
void grouped_gemm_weight_gradient_(at::Tensor sum_GOI, const at::Tensor& dy_RO, const at::Tensor& x_RI,
                                   const at::Tensor& ends_G, bool add);

}  // namespace teratron
