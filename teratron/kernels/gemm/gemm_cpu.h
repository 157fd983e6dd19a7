// CPU GEMMs for the cases where ATen's operators are slow (docs/notes/cpu_gemm.md): f32, and f32 sums of bf16
// products where those are fast, use oneDNN (part of libtorch) instead of MKL; bf16 and f16 are computed in
// f32 where that is faster.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron::cpu {

/// Speed of libtorch's bf16 or f16 GEMMs relative to f32.
enum class HalfGemm : uint8_t {
  fast,      // used as they are
  slow,      // native, but with many rows slower than f32 with conversions: bf16 on Intel's AVX512_BF16
  emulated,  // no native instruction: a fraction of the speed of f32
};
struct CpuFeatures {
  bool is_x86 = true, is_amd = false;
  bool amx_bf16 = false, avx512_bf16 = false, avx512_fp16 = false;
};
/// For bf16 or f16. AMX and processors other than x86 were not measured and count as fast.
HalfGemm half_gemm_speed(at::ScalarType type, const CpuFeatures& cpu);
/// On this processor.
HalfGemm half_gemm_here(at::ScalarType type);
/// x, or x in f32 if this processor emulates its dtype.
at::Tensor upcast_if_emulated(const at::Tensor& x);

/// Whether `linear` supports these operands and is worth its set-up: no autograd recording, contiguous x with
/// many rows in f32, or bf16 or f16 with enough rows that f32 is faster. The first call with an f32 shape
/// costs half a millisecond, and oneDNN caches the last 1024 shapes.
bool use_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias = {});
/// x [T, I] w^T + bias for w [O, I] with any strides and bias [O], contiguous or undefined; one of f32, bf16
/// and f16, rounded once.
at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias);

/// Whether oneDNN has the bf16 block GEMM for this processor.
bool has_brgemm();
/// Whether `weight_gradient` supports these tensors (contiguous) and is faster than f32.
bool use_weight_gradient(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x);
/// sum [O, I] in f32 = (add: sum +) dy^T x for dy [T, O] and x [T, I] in bf16, accumulated in f32.
void weight_gradient(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x, bool add);

}  // namespace teratron::cpu
