// Launchers of sum_rows.h and weighted_activation.h. Raw device pointers; null where a tensor is undefined.
#pragma once

#include "teratron/kernels/common/launcher.h"
#include "teratron/kernels/pointwise/activation_kind.h"

namespace teratron::cuda {

struct SumRowsArgs {
  int64_t tokens, topk, width;
  Dtype dtype;          // of x
  bool wide;            // out: the accumulation type instead
  const void* x;        // [., width]
  const int64_t* rows;  // [tokens, topk]
  const bool* kept;     // [tokens, topk]
  void* out;            // [tokens, width]
};
TERATRON_LAUNCHER(void, sum_rows, const SumRowsArgs& args, CUstream_st* stream);

/// h and dh are [rows, width], z and dz are twice as wide if gated, p and dp [rows] of the accumulation type.
struct WeightedActivationArgs {
  int64_t rows, width;
  Dtype dtype;
  Activation activation;
  const void *z, *p;
  const void* dh;  // backward only
  void* h;
  void *dz, *dp;  // backward only
};
TERATRON_LAUNCHER(void, weighted_activation_forward, const WeightedActivationArgs& args, CUstream_st* stream);
TERATRON_LAUNCHER(void, weighted_activation_backward, const WeightedActivationArgs& args,
                  CUstream_st* stream);

}  // namespace teratron::cuda
