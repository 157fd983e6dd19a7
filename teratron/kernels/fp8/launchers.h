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

struct Fp8CastArgs {
  Fp8Output to;
  Dtype dtype;  // of x
  const void* x;
};
TERATRON_LAUNCHER(void, fp8_cast, const Fp8CastArgs& args, CUstream_st* stream);

struct Fp8ScaleArgs {
  int64_t count;  // a multiple of 8
  Dtype dtype;    // of x
  float largest;  // finite value of the format
  const void* x;
  float *amax, *scale, *scale_inv;  // amax must be zero
};
TERATRON_LAUNCHER(void, compute_fp8_scale, const Fp8ScaleArgs& args, CUstream_st* stream);

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
