// Launchers of optimizer_step.h. Raw device pointers; null where a tensor is undefined.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"

struct CUstream_st;

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
void adam_step(const StepArgs& args, const AdamConstants& constants, CUstream_st* stream);
void sgd_step(const StepArgs& args, double momentum, CUstream_st* stream);
void advance_step(int64_t* step, const float* found_inf, CUstream_st* stream);

struct HalvesArgs {
  int64_t n;
  uint32_t* x;  // bits of fp32
  uint16_t* high;
  int16_t* low;
};
void join_halves(const HalvesArgs& args, CUstream_st* stream);
void split_into_halves(const HalvesArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
