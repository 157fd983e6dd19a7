// cuBLASLt's matrix product. Raw device pointers; null where a tensor is undefined.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"

struct CUstream_st;

namespace teratron::cuda {

/// out [m, n] = a [m, k] b [n, k]^T (+ addend [m, n]) (+ bias [n]), all row-major and contiguous.
struct GemmArgs {
  int64_t m, n, k;
  Dtype a_type, b_type, out_type;  // bf16 or f16 for all; or FP8 operands, also into f32
  const void *a, *b;
  const float *a_inverse, *b_inverse;  // of FP8 operands, what their values are multiplied by
  const void* addend;                  // in out_type; may be `out` itself
  const void* bias;                    // in out_type
  void* out;
  bool fast_accumulation;  // see fp8.h
  void* workspace;
};
inline constexpr int64_t gemm_workspace = int64_t{32} << 20;
/// Throws a Fault where cuBLASLt has no kernel for it.
void gemm(const GemmArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
