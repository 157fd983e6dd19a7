// Products on the CPU where the operators that anybody calls take longer (docs/performance.md): those of f32 and, on processors
// that multiply bf16 fast, sums in f32 of products of bf16 go to oneDNN, which is in libtorch, instead of MKL; and products of
// bf16 or f16 are computed in f32 where the processor does not multiply them fast.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron::cpu {

struct Processor {
  bool is_x86 = true, is_amd = false;
  bool amx_bf16 = false, avx512_bf16 = false, avx512_fp16 = false;
};
/// Whether libtorch's products of this type are faster than f32's. Intel's AVX512_BF16 is not (half the rate of AMD's), and
/// without any, products of bf16 and f16 take 5 to 15 times as long. Processors other than x86 were not measured: yes.
bool multiplies_fast(at::ScalarType type, const Processor& processor);
/// This processor.
bool multiplies_fast(at::ScalarType type);

/// Whether `multiply` takes these factors and is worth its set-up, outside of autograd's recording: contiguous x of many rows
/// in f32, or a few in bf16 or f16 where this processor does not multiply them fast. A size of f32 that was not seen before
/// costs half a millisecond and memory that oneDNN keeps (of the last 1024).
bool suits_multiply(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias = {});
/// x [T, I] times the transpose of w [O, I] (of any strides), plus bias [O], contiguous, if that is defined.
at::Tensor multiply(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias);

/// Whether `add_product` takes these: contiguous, on a processor that multiplies bf16 fast.
bool suits_add_product(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x);
/// sum [O, I], f32 = (add: sum +) dy^T x for dy [T, O] and x [T, I] in bf16, added in f32.
void add_product(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x, bool add);

}  // namespace teratron::cpu
