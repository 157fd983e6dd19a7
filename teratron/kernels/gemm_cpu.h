// Products on the CPU by oneDNN. It is in libtorch, but the operators for everybody leave two cases to MKL, which there takes
// a fifth to twice as long: f32 on processors that are not Intel's, and sums in f32 of products of bf16.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron::cpu {

/// Whether `multiply` takes these factors and is worth its set-up: f32, many rows.
bool suits_multiply(const at::Tensor& x, const at::Tensor& w);
/// x [T, I] times the transpose of w [O, I] (of any strides), plus bias [O] if that is defined.
at::Tensor multiply(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias);

/// Whether `add_product` takes these: bf16 factors, contiguous, on a processor that multiplies bf16 (AVX512_BF16).
bool suits_add_product(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x);
/// sum [O, I], f32 = (add: sum +) dy^T x for dy [T, O] and x [T, I]; every product and sum in f32.
void add_product(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x, bool add);

}  // namespace teratron::cpu
