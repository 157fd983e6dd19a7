// cuBLASLt's matrix product. Raw device pointers; null where a tensor is undefined.
#pragma once

#include <cstddef>
#include <cstdint>

#include "teratron/base/dtype.h"

struct CUstream_st;

namespace teratron::cuda {

/// A row-major factor of a product.
struct GemmFactor {
  const void* data;
  Dtype type;
  int64_t stride;                  // elements from one row to the next
  bool across_k = false;           // stored [k, m] or [k, n]
  const float* inverse = nullptr;  // of FP8: what its values are multiplied by
};

/// out [m, n] = (weights[0]) a [m, k] b [n, k]^T (+ addend [m, n]) (+ bias [n]); all but the factors contiguous.
struct GemmArgs {
  int64_t m, n, k;
  GemmFactor a, b;     // both bf16, both f16, or FP8, which is not stored across k
  const void* addend;  // in out_type; may be `out` itself
  const void* bias;    // in out_type
  void* out;
  Dtype out_type;                  // that of bf16 or f16 factors, or f32; bf16, f16 or f32 of FP8
  bool fast_accumulation = false;  // see fp8.h
  void* workspace;
  /// On the device: of the product, and 1 with an addend, else 0. Null: the product's is 1.
  const float* weights = nullptr;
};
inline constexpr int64_t gemm_workspace = int64_t{32} << 20;
/// By the kernel that gemm_choice.h chooses. Throws a Fault where cuBLASLt has no kernel for it.
void gemm(const GemmArgs& args, CUstream_st* stream);
/// The place among cuBLASLt's proposals of the kernel that gemm() takes. For tests.
size_t gemm_choice(const GemmArgs& args);

}  // namespace teratron::cuda
