// FP8 matrices with per-tensor scaling, and their products (Micikevicius et al. 2022).
//
// x is stored as q = x * scale, rounded to the nearest value of the format, ties to even; values beyond the
// largest finite one saturate, NaN stays NaN. It is dequantized as q * scale_inv, scale_inv = 1 / scale.
// Scales and amax are fp32 [1] on the matrix' device, so the host never waits for them.
//
// Hopper multiplies FP8 only if both operands are k-major. So one pass over x writes both x and its
// transpose.
//
// Shapes: rows and columns are multiples of 16; of rows in groups (grouped_fp8.h) only columns. Dtypes of x:
// f32, bf16, f16. CPU, and GPUs of compute capability 8.9 or higher; asynchronous on the current CUDA stream.
// The CPU multiplies the same eight-bit values in fp32.
// Measurements: docs/notes/fp8.md.
#pragma once

#include <ATen/core/Tensor.h>

#include "teratron/kernels/fp8/fp8_format.h"

namespace teratron {

struct Fp8Scale {
  at::Tensor scale;
  at::Tensor scale_inv;
};

/// Rows in groups (experts): group g is the rows [ends[g - 1], ends[g]), which only the device knows. Rows
/// from the last end on are not read, and not defined in results. In a transpose the columns of a group begin
/// at a multiple of 128 and are followed by zeros up to the next multiple: GEMMs over them take whole steps.
struct Fp8Groups {
  at::Tensor ends_G;         // i32
  at::Tensor padded_ends_G;  // i32, in the transpose
  int64_t columns = 0;       // of the transpose
};
Fp8Groups make_fp8_groups(const at::Tensor& ends_G, int64_t rows);
/// The most columns that so many rows in groups need.
int64_t fp8_columns(int64_t rows, int64_t groups);

/// The scale that maps amax(|x|) to the format's largest value; 1 if x is zero or not finite. With groups, x
/// stands for their rows.
Fp8Scale compute_fp8_scale(const at::Tensor& x, Fp8Format format, const Fp8Groups* groups = nullptr);

struct Fp8Cast {
  Fp8Format format = Fp8Format::e4m3;
  Fp8Scale scale;
  at::Tensor amax = {};  // <- max(amax, |x|), where NaN is the largest; may be undefined
  bool rows = true;
  bool columns = true;
  const Fp8Groups* groups = nullptr;  // null: rows are not in groups
};

struct Fp8Matrix {
  at::Tensor rows;     // [R, C]
  at::Tensor columns;  // the transpose [C, R], of groups [C, Fp8Groups::columns], contiguous
  at::Tensor scale_inv;
};

/// x [R, C] contiguous; rows or columns that were not requested stay undefined.
Fp8Matrix cast_to_fp8(const at::Tensor& x, const Fp8Cast& cast);

struct Fp8Operand {
  at::Tensor values;     // [R, K], rows may be further apart than K
  at::Tensor scale_inv;  // 16-byte aligned on a GPU
};

struct Fp8Product {
  Fp8Operand a;  // [M, K]
  Fp8Operand b;  // [N, K]
  /// Keeps partial sums in the tensor cores' reduced precision between steps: faster, sufficient for
  /// activations.
  bool fast_accumulation = false;
};

/// a b^T (+ bias [N] or undefined) [M, N] in `type`: f32 (without bias on a GPU), bf16 or f16.
at::Tensor fp8_matmul(const Fp8Product& product, const at::Tensor& bias, at::ScalarType type);
/// residual [M, N] + a b^T (+ bias [N] or undefined) in the residual's dtype: bf16 or f16 on a GPU.
at::Tensor fp8_matmul_add(const Fp8Product& product, const at::Tensor& bias, const at::Tensor& residual);
/// out [M, N] fp32 = a b^T.
void fp8_matmul_out(const at::Tensor& out, const Fp8Product& product);
/// sum [M, N] fp32 += a b^T.
void fp8_matmul_add_(const at::Tensor& sum, const Fp8Product& product);

}  // namespace teratron
