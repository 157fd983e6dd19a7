// Launchers of fp8.h and activation_fp8.h. Raw device pointers; null where a tensor is undefined.
#pragma once

#include "teratron/kernels/fp8/fp8_format.h"
#include "teratron/kernels/pointwise/launchers.h"

namespace teratron::cuda {

/// An FP8 matrix that a kernel writes.
struct Fp8Output {
  int64_t rows, columns;  // multiples of 16
  Fp8Format format;
  const float* scale;
  float* amax;
  void *out, *transposed;
};

/// Fp8Groups.
struct Fp8RowGroups {
  const int32_t *ends, *padded_ends;
  int64_t count;  // 0: rows are not in groups
};

struct Fp8CastArgs {
  Fp8Output to;  // of groups: `rows` are the columns of the transpose
  Dtype dtype;   // of x
  const void* x;
  Fp8RowGroups groups = {};
};
TERATRON_LAUNCHER(void, fp8_cast, const Fp8CastArgs& args, CUstream_st* stream);

struct Fp8ScaleArgs {
  int64_t count;  // a multiple of 8
  Dtype dtype;    // of x
  float largest;  // finite value of the format
  const void* x;
  float *amax, *scale, *scale_inv;  // amax must be zero
  const int32_t* rows = nullptr;    // reads only so many rows of `columns`; null: all
  int64_t columns = 0;
};
TERATRON_LAUNCHER(void, compute_fp8_scale, const Fp8ScaleArgs& args, CUstream_st* stream);

/// The products of grouped_fp8.h.
enum class Fp8GroupedProduct : uint8_t {
  forward,         // out [rows, n] bf16: a [rows, k], b [groups n, k]
  input_gradient,  // out [rows, n] bf16: a [rows, k], b [n, groups k]
  weight_gradient  // out [groups, rows, n] f32: a [rows, k], b [n, k], k being the columns of the transposes
};
inline constexpr int64_t fp8_max_groups = 1024;
struct Fp8GroupedGemmArgs {
  Fp8GroupedProduct product;
  Fp8RowGroups groups;  // at most fp8_max_groups
  int64_t rows, n, k;   // at least 1; n and k multiples of 16
  Fp8Format a_format;   // b is e4m3
  const void *a, *b;
  const float *a_scale_inv, *b_scale_inv;
  void* out;
  int64_t out_stride = 0;  // weight gradient: elements from one group's to the next
  bool add = false;        // weight gradient
};
/// Whether the current device has the kernels: compute capability 9.0.
TERATRON_LAUNCHER(bool, has_fp8_grouped_gemm, );
TERATRON_LAUNCHER(void, fp8_grouped_gemm, const Fp8GroupedGemmArgs& args, CUstream_st* stream);

struct ActivationFp8Args {
  ActivationShape shape;  // bf16 or f16; rows and width are multiples of 16
  Fp8Output to;
  const void* x;
  const void* dy;              // backward only
  ColumnReduction dbias = {};  // backward only: of dx before rounding
};
TERATRON_LAUNCHER(int64_t, activation_fp8_workspace_rows, const ActivationShape& shape);
TERATRON_LAUNCHER(void, activation_forward_fp8, const ActivationFp8Args& args, CUstream_st* stream);
TERATRON_LAUNCHER(void, activation_backward_fp8, const ActivationFp8Args& args, CUstream_st* stream);

}  // namespace teratron::cuda
