// Launchers of norm.h. Raw device pointers; null where a tensor is undefined.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"
#include "teratron/kernels/common/row_sum.h"

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
  bool sums_dx = false;  // in backward
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
  RowSum dweight, dbias;  // dbias may be null
  RowSum dx_sum;          // not null if shape.sums_dx
};
/// Whether the backward can sum dx in its pass: of layer norms with a shift whose rows leave registers for it.
bool norm_backward_can_sum_dx(const NormShape& shape);
/// How many rows of partial sums the backward writes.
int64_t norm_backward_blocks(const NormShape& shape);
void norm_backward(const NormShape& shape, const NormBackwardArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
