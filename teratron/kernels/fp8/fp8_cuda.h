// Launchers of fp8.h. Raw device pointers; null where a tensor is undefined.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"
#include "teratron/kernels/fp8/fp8_format.h"

struct CUstream_st;

namespace teratron::cuda {

/// A matrix in FP8 that a kernel writes.
struct Fp8Target {
  int64_t rows, columns;  // multiples of 16
  Fp8Format format;
  const float* scale;
  float* amax;
  void *out, *transposed;
};

struct Fp8CastArgs {
  Fp8Target to;
  Dtype dtype;  // of x
  const void* x;
};
void fp8_cast(const Fp8CastArgs& args, CUstream_st* stream);

struct Fp8ScaleArgs {
  int64_t count;  // a multiple of 8
  Dtype dtype;    // of x
  float largest;  // of the format
  const void* x;
  float *amax, *scale, *inverse;  // amax is zero before
};
void fp8_scale_of(const Fp8ScaleArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
