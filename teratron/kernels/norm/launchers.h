// Launchers of norm.h. Raw device pointers; null where a tensor is undefined.
#pragma once

#include "teratron/kernels/common/column_reduction.h"
#include "teratron/kernels/common/launcher.h"

namespace teratron::cuda {

struct NormShape {
  int64_t rows;
  int64_t width;
  Dtype dtype;         // of x, y, residual, added_bias
  Dtype weight_dtype;  // of weight and bias: dtype or f32
  double eps;
  bool rms;
  bool zero_centered;
  bool sums_dx = false;  // backward only
};

struct NormForwardArgs {
  const void *x, *residual, *added_bias, *weight, *bias;
  void *sum, *y;
  void *mean, *rstd;
};
TERATRON_LAUNCHER(void, norm_forward, const NormShape& shape, const NormForwardArgs& args,
                  CUstream_st* stream);

struct NormBackwardArgs {
  const void *dy, *dresidual, *sum, *mean, *rstd, *weight;
  void* dx;
  ColumnReduction dweight, dbias;  // dbias may be null
  ColumnReduction dx_sum;          // not null if shape.sums_dx
};
/// Whether the backward can sum dx in the same pass: layer norms with a bias whose rows leave enough
/// registers.
TERATRON_LAUNCHER(bool, norm_backward_can_sum_dx, const NormShape& shape);
TERATRON_LAUNCHER(int64_t, norm_backward_workspace_rows, const NormShape& shape);
TERATRON_LAUNCHER(void, norm_backward, const NormShape& shape, const NormBackwardArgs& args,
                  CUstream_st* stream);

}  // namespace teratron::cuda
