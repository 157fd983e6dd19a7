// Launchers of activation.h. Raw device pointers; null where a tensor is undefined.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"
#include "teratron/kernels/common/row_sum.h"
#include "teratron/kernels/pointwise/activation_kind.h"

struct CUstream_st;

namespace teratron::cuda {

/// y or dy is [rows, width]; x, bias and dx are twice as wide for gated activations.
struct ActivationShape {
  int64_t rows;
  int64_t width;
  Dtype dtype;
  Activation activation;
};

struct ActivationArgs {
  const void *x, *bias;
  const void* dy;   // backward only
  void* out;        // y or dx
  RowSum sum = {};  // backward only: of dx before it is rounded
};
/// How many rows of partial sums the backward writes at most.
int64_t activation_partials(const ActivationShape& shape);
void activation_forward(const ActivationShape& shape, const ActivationArgs& args, CUstream_st* stream);
void activation_backward(const ActivationShape& shape, const ActivationArgs& args, CUstream_st* stream);

struct ColumnSumArgs {
  int64_t rows;
  int64_t width;
  Dtype dtype;
  const void* x;
  RowSum sum;
};
/// How many rows of partial sums it writes.
int64_t column_sum_partials(int64_t rows, int64_t width);
void column_sum(const ColumnSumArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
