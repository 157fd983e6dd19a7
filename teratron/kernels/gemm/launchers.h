// Launchers of gemm.h: cuBLASLt's GEMM, and our GEMMs with a fused activation or RoPE. Raw device pointers;
// null where a tensor is undefined.
#pragma once

#include <cstddef>

#include "teratron/kernels/common/column_reduction.h"
#include "teratron/kernels/common/launcher.h"
#include "teratron/kernels/pointwise/activation_kind.h"

namespace teratron::cuda {

/// A row-major GEMM operand.
struct GemmOperand {
  const void* data;
  Dtype type;
  int64_t stride;                    // elements from one row to the next
  bool mn_major = false;             // stored [k, m] or [k, n]
  const float* scale_inv = nullptr;  // FP8 only: factor of its values
};

/// out [m, n] = (alpha) a [m, k] b [n, k]^T (+ addend [m, n]) (+ bias [n]); all but the operands contiguous.
struct GemmArgs {
  int64_t m, n, k;
  GemmOperand a, b;    // both bf16, both f16, or FP8, which must be k-major
  const void* addend;  // in out_type; may be `out` itself
  const void* bias;    // in out_type
  void* out;
  Dtype out_type;                  // the type of bf16 or f16 operands, or f32; bf16, f16 or f32 with FP8
  bool fast_accumulation = false;  // see fp8.h
  void* workspace;
  /// alpha and beta on the device; beta must be 1 with an addend, else 0. Null: alpha = 1.
  const float* alpha_beta = nullptr;
};
inline constexpr int64_t gemm_workspace = int64_t{32} << 20;
/// Uses the algorithm that gemm_heuristic.h selects. Throws a Fault if cuBLASLt has none.
TERATRON_LAUNCHER(void, gemm, const GemmArgs& args, CUstream_st* stream);
/// Index of gemm()'s algorithm in cuBLASLt's heuristic list. For tests.
TERATRON_LAUNCHER(size_t, gemm_algorithm_index, const GemmArgs& args);

/// norm.h of the rows of a matrix; weight null: none.
struct SkinnyNorm {
  const void *weight = nullptr, *bias = nullptr;  // [k], of the matrix's dtype; bias may be null
  float eps = 0.0f;
  bool rms = false, zero_centered = false;
};
/// out [rows, n] = x' [rows, k] w [n, k]^T (+ bias [n]) (+ addend [rows, n]), rounded once; or, activated,
/// out = activation(z) of the rounded z = x' w^T (+ bias), without addend: [rows, n / 2] if gated. x' is x,
/// or norm(x), rounded. bf16 or f16, contiguous, k a multiple of 8, all but bias and addend 16-byte aligned.
/// Sums in f32; those of a row do not depend on the other rows, nor on their number.
struct SkinnyGemmArgs {
  int64_t rows, n, k;
  const void *x, *w, *bias, *addend;
  void* out;
  Dtype dtype;
  bool activated = false;
  Activation activation = Activation::gelu;
  SkinnyNorm norm = {};
};
inline constexpr int64_t skinny_gemm_rows = 8;  // at most; cuBLASLt is faster from 16 on
/// Whether the current device has the kernel and it is faster than cuBLASLt for so many rows.
TERATRON_LAUNCHER(bool, has_skinny_gemm, int64_t rows);
/// The rows' shared memory in a block with a norm; beyond this much there are too few blocks.
TERATRON_LAUNCHER(int64_t, skinny_gemm_norm_bytes, int64_t rows, int64_t k);
inline constexpr int64_t most_skinny_gemm_norm_bytes = 96 << 10;
TERATRON_LAUNCHER(void, skinny_gemm, const SkinnyGemmArgs& args, CUstream_st* stream);

/// The fused kernels: bf16, compute capability 9.0. An activation's output is [rows, width], the
/// pre-activation z [rows, width], or gate|up [rows, 2 width] if gated.
struct FusedGemmShape {
  int64_t rows, width, k;
  Activation activation;
  int64_t added_k = 0;  // of the added product; 0: none
};

/// A second product, summed with the first before rounding: its operands are those of the first with added_k
/// instead of k, 16-byte aligned, added_k a multiple of 8.
struct AddedOperands {
  const void *x = nullptr, *w = nullptr;
};

/// z = x [rows, k] w^T (+ bias), rounded; out = activation(z). w [width of z, k].
struct GemmActivationForward {
  const void *x, *w;
  const void* bias;  // [width of z] or null
  void* z;           // null: not stored
  void* out;
  AddedOperands added = {};
};

/// dz = activation'(z) * (dy [rows, k] w), of the rounded product. w [k, width].
struct GemmActivationBackward {
  const void *dy, *w, *z;
  void* dz;
  ColumnReduction dbias;  // of dz before rounding
  AddedOperands added = {};
};

/// Whether the current device has these kernels and the shape has tiles (128 x 256, in vertical pairs) for
/// all SMs. GEMMs with a small k use tiles of 128 x 192 (fused_gemm_tile.cuh).
TERATRON_LAUNCHER(bool, has_gemm_activation, const FusedGemmShape& shape);
/// width and k must be multiples of 8, pointers 16-byte aligned.
TERATRON_LAUNCHER(void, gemm_activation_forward, const FusedGemmShape& shape,
                  const GemmActivationForward& args, CUstream_st* stream);
TERATRON_LAUNCHER(int64_t, gemm_activation_workspace_rows, const FusedGemmShape& shape);
TERATRON_LAUNCHER(void, gemm_activation_backward, const FusedGemmShape& shape,
                  const GemmActivationBackward& args, CUstream_st* stream);

/// RoPE of queries and keys, style `half` over all channels (rope.h).
struct GemmRope {
  const float *cos, *sin;    // [positions, channels / 2]
  const int64_t* positions;  // of row s * batch + b: positions[s * stride_s + b * stride_b]
  int64_t stride_s, stride_b;
  int batch;
  int per_group;  // heads: the queries, a key and a value
  int channels;   // of a head
};
/// out [rows, width] = x [rows, k] w^T (+ bias), rounded, then rotated and rounded again.
struct GemmRopeArgs {
  const void *x, *w;
  const void* bias;  // [width] or null
  void* out;
  GemmRope rope;
  AddedOperands added = {};
};
/// Whether the kernel exists, as above, for heads of `channels`, and is not slower than a GEMM and a RoPE
/// kernel.
TERATRON_LAUNCHER(bool, has_gemm_rope, const FusedGemmShape& shape, int64_t channels);
/// As gemm_activation_forward; ignores shape.activation.
TERATRON_LAUNCHER(void, gemm_rope, const FusedGemmShape& shape, const GemmRopeArgs& args,
                  CUstream_st* stream);

}  // namespace teratron::cuda
