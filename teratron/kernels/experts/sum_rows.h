// The sum of the rows that belong to a token, in the order of its slots:
//
//   out[t] = sum_k x[rows[t, k]]        k: slots that are kept
//
// x [R, H] contiguous in f32, bf16, f16 or f64; rows i64 [T, K], kept bool [T, K] or undefined (all), with
// rows below R where kept; sums in f32 (f64). A gather, so bitwise reproducible. CPU and CUDA; asynchronous
// on the current CUDA stream.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

/// out [T, H], contiguous, of x's dtype, or of f32 (f64) before it is rounded.
void sum_rows_out(const at::Tensor& out_TH, const at::Tensor& x_RH, const at::Tensor& rows_TK,
                  const at::Tensor& kept_TK);
at::Tensor sum_rows(const at::Tensor& x_RH, const at::Tensor& rows_TK, const at::Tensor& kept_TK,
                    at::ScalarType dtype);

}  // namespace teratron
