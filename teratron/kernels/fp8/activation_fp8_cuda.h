// Launchers of activation_fp8.h. Raw device pointers; null where a tensor is undefined.
#pragma once

#include "teratron/kernels/fp8/fp8_cuda.h"
#include "teratron/kernels/pointwise/activation_cuda.h"

namespace teratron::cuda {

struct ActivationFp8Args {
  ActivationShape shape;  // bf16 or f16; rows and width are multiples of 16
  Fp8Target to;
  const void* x;
  const void* dy;   // backward only
  RowSum sum = {};  // backward only: of dx before it is rounded
};
/// How many rows of partial sums the backward writes.
int64_t activation_fp8_partials(const ActivationShape& shape);
void activation_forward_fp8(const ActivationFp8Args& args, CUstream_st* stream);
void activation_backward_fp8(const ActivationFp8Args& args, CUstream_st* stream);

}  // namespace teratron::cuda
