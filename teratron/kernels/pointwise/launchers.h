// Launchers of activation.h, dropout.h, embedding.h and random_fill.h. Raw device pointers; null where a
// tensor is undefined.
#pragma once

#include "teratron/kernels/common/column_reduction.h"
#include "teratron/kernels/common/launcher.h"
#include "teratron/kernels/pointwise/activation_kind.h"
#include "teratron/kernels/pointwise/dropout_mask.h"

namespace teratron::cuda {

/// y and dy are [rows, width]; x, bias and dx are twice as wide if gated.
struct ActivationShape {
  int64_t rows;
  int64_t width;
  Dtype dtype;
  Activation activation;
};

struct ActivationArgs {
  const void *x, *bias;
  const void* dy;              // backward only
  void* out;                   // y or dx
  ColumnReduction dbias = {};  // backward only: of dx before rounding
};
/// Upper bound: rows of partial sums that the backward writes.
TERATRON_LAUNCHER(int64_t, activation_workspace_rows, const ActivationShape& shape);
TERATRON_LAUNCHER(void, activation_forward, const ActivationShape& shape, const ActivationArgs& args,
                  CUstream_st* stream);
TERATRON_LAUNCHER(void, activation_backward, const ActivationShape& shape, const ActivationArgs& args,
                  CUstream_st* stream);

struct ColumnSumArgs {
  int64_t rows;
  int64_t width;
  Dtype dtype;
  const void* x;
  ColumnReduction sum;
};
TERATRON_LAUNCHER(int64_t, column_sum_workspace_rows, int64_t rows, int64_t width);
TERATRON_LAUNCHER(void, column_sum, const ColumnSumArgs& args, CUstream_st* stream);

struct DropoutArgs {
  int64_t rows;
  int64_t width;
  Dtype dtype;
  const void *x, *bias, *residual;
  void* y;
  DropoutMask mask;  // threshold 0: nothing is dropped and no random number is drawn
};
TERATRON_LAUNCHER(void, bias_dropout_add, const DropoutArgs& args, CUstream_st* stream);

struct EmbeddingAddArgs {
  int64_t rows, width;
  Dtype dtype;
  const int64_t* ids;  // [rows / rows_per_id]
  int64_t rows_per_id;
  const void* table;
  void* x;
};
TERATRON_LAUNCHER(void, embedding_add, const EmbeddingAddArgs& args, CUstream_st* stream);

struct EmbeddingGradArgs {
  int64_t rows, width;
  Dtype dtype;           // of dy
  const int64_t* ids;    // [rows], ascending
  const int64_t* order;  // [rows]: the row of dy that each id belongs to
  const void* dy;
  void* sum;        // accumulation type
  void* workspace;  // [embedding_grad_workspace_rows(rows), width], accumulation type
};
TERATRON_LAUNCHER(int64_t, embedding_grad_workspace_rows, int64_t rows);
TERATRON_LAUNCHER(void, embedding_grad_add, const EmbeddingGradArgs& args, CUstream_st* stream);

/// A local array of up to 4 dimensions and the global indices of its elements.
struct RandomFillArgs {
  int64_t size[4];           // outermost first; unused leading dimensions are 1
  int64_t stride[4];         // of x
  int64_t global_stride[4];  // in the row-major global tensor
  uint64_t first;            // global index of local element 0
  void* x;
  Dtype dtype;
  RandomKey key;
  bool uniform;
  float offset, scale;
};
TERATRON_LAUNCHER(void, random_fill, const RandomFillArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
