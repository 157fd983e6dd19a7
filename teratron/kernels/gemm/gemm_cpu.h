// Products on the CPU where the operators that anybody calls take longer (docs/performance.md): those of f32 and, where
// products of bf16 are fast, sums in f32 of them go to oneDNN, which is in libtorch, instead of MKL; and products of bf16 or f16
// are computed in f32 where that is faster.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron::cpu {

/// How libtorch's products of two-byte floats compare to its products of f32.
enum class HalfProducts : uint8_t {
  fast,  // taken as they are
  slow,  // by an instruction, but from some rows on slower than f32 with the conversions: bf16 by Intel's AVX512_BF16
  emulated,  // without an instruction: a fraction of the speed of f32
};
struct Processor {
  bool is_x86 = true, is_amd = false;
  bool amx_bf16 = false, avx512_bf16 = false, avx512_fp16 = false;
};
/// For bf16 or f16. Not measured and left as they are: AMX, and processors other than x86.
HalfProducts half_products(at::ScalarType type, const Processor& processor);
/// `x` itself, or f32 where this processor has no instruction for its type.
at::Tensor widened_where_emulated(const at::Tensor& x);

/// Whether `multiply` takes these factors and is worth its set-up, outside of autograd's recording: contiguous x of many rows
/// in f32, or bf16 or f16 of as many as make f32 faster here. A size of f32 that was not seen before costs half a millisecond
/// and memory that oneDNN keeps (of the last 1024).
bool suits_multiply(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias = {});
/// x [T, I] times the transpose of w [O, I] (of any strides), plus bias [O], contiguous, if that is defined;
/// one of f32, bf16 and f16, rounded once.
at::Tensor multiply(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias);

/// Whether oneDNN has for this processor what `add_product` consists of.
bool has_add_product();
/// Whether `add_product` takes these, contiguous ones, and is faster than f32.
bool suits_add_product(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x);
/// sum [O, I], f32 = (add: sum +) dy^T x for dy [T, O] and x [T, I] in bf16, added in f32.
void add_product(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x, bool add);

}  // namespace teratron::cpu
