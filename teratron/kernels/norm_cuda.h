// Launchers of norm.h. Raw device pointers; null where a tensor is undefined.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"

struct CUstream_st;

namespace teratron::cuda {

struct NormShape {
  int64_t rows;
  int64_t width;
  Dtype dtype;         // of x, y, residual, added_bias
  Dtype weight_dtype;  // of weight and bias: dtype or f32
  double eps;
  bool rms;
  bool zero_centered;
};

struct NormForwardArgs {
  const void *x, *residual, *added_bias, *weight, *bias;
  void *sum, *y;
  void *mean, *rstd;
};
void norm_forward(const NormShape& shape, const NormForwardArgs& args, CUstream_st* stream);

struct NormBackwardArgs {
  const void *dy, *dresidual, *sum, *mean, *rstd, *weight;
  void* dx;
  void *partial_dweight, *partial_dbias;  // [norm_backward_blocks(shape), width]; partial_dbias may be null
  void *dweight, *dbias;
};
/// How many rows of partial sums the backward writes.
int64_t norm_backward_blocks(const NormShape& shape);
void norm_backward(const NormShape& shape, const NormBackwardArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
