// Products on the CPU by oneDNN. It is in libtorch, but in two cases the operators that anybody calls go to MKL, which takes
// longer (docs/performance.md): forward products and input gradients of f32, and sums in f32 of products of bf16.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron::cpu {

/// Whether `multiply` takes these factors and is worth its set-up: f32, contiguous x of many rows, outside of autograd's
/// recording. A size that was not seen before costs half a millisecond and memory that oneDNN keeps (of the last 1024).
bool suits_multiply(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias = {});
/// x [T, I] times the transpose of w [O, I] (of any strides), plus bias [O], contiguous, if that is defined.
at::Tensor multiply(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias);

/// Whether `add_product` takes these: contiguous, on a processor that multiplies bf16 (AVX512_BF16 or AMX).
bool suits_add_product(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x);
/// sum [O, I], f32 = (add: sum +) dy^T x for dy [T, O] and x [T, I] in bf16, added in f32.
void add_product(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x, bool add);

}  // namespace teratron::cpu
