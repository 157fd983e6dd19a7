// Launchers of optimizer_step.h. Raw device pointers; null where a tensor is undefined.
#pragma once

#include "teratron/kernels/common/launcher.h"

namespace teratron::cuda {

struct StepArgs {
  int64_t n;
  Dtype param_dtype, grad_dtype;
  void* param;
  int16_t* remainder;
  void* copy;  // f16
  const void* grad;
  void *moment1, *moment2;  // SGD: moment1 is the momentum buffer, moment2 null
  const uint8_t* groups;
  const double *lr, *weight_decay;  // [group_count], at most 256
  int group_count;
  const int64_t* step;
  const float *grad_scale, *found_inf;
};

struct AdamConstants {
  double beta1, beta2, eps;
  bool decoupled;
};
TERATRON_LAUNCHER(void, adam_step, const StepArgs& args, const AdamConstants& constants, CUstream_st* stream);
TERATRON_LAUNCHER(void, sgd_step, const StepArgs& args, double momentum, CUstream_st* stream);
TERATRON_LAUNCHER(void, advance_step, int64_t* step, const float* found_inf, CUstream_st* stream);

struct SplitWeightsArgs {
  int64_t n;
  uint32_t* x;  // bits of fp32
  uint16_t* high;
  int16_t* low;
};
TERATRON_LAUNCHER(void, join_master_weights, const SplitWeightsArgs& args, CUstream_st* stream);
TERATRON_LAUNCHER(void, split_master_weights, const SplitWeightsArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
