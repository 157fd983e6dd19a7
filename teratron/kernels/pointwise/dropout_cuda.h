// Launchers of dropout.h and softmax.h. Raw device pointers; null where a tensor is undefined.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"
#include "teratron/kernels/pointwise/dropout_mask.h"

struct CUstream_st;

namespace teratron::cuda {

struct DropoutArgs {
  int64_t rows;
  int64_t width;
  Dtype dtype;
  const void *x, *bias, *residual;
  void* y;
  DropoutMask mask;  // threshold 0: nothing is dropped and no random number is drawn
};
void bias_dropout_add(const DropoutArgs& args, CUstream_st* stream);

struct SoftmaxArgs {
  int64_t batch, heads, queries, keys;
  Dtype dtype;
  double scale;
  bool causal;
  const bool* masked;
  int64_t masked_strides[4];
  const void* slopes;   // accumulation type
  const void* in;       // scores, or dy
  const void* saved;    // backward: the probabilities
  void* probabilities;  // forward
  void* out;            // forward: y, null when nothing is dropped; backward: dscores
  DropoutMask mask;
};
void softmax_forward(const SoftmaxArgs& args, CUstream_st* stream);
void softmax_backward(const SoftmaxArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
