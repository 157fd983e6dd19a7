// What kernels that write FP8 share on the host. Internal to kernels.
#pragma once

#include "teratron/kernels/fp8/fp8.h"
#include "teratron/kernels/fp8/fp8_cuda.h"

namespace teratron {

/// Whether the kernels that compute a matrix and cast it read x [R, C], C of `parts` matrices side by side: bf16 or f16 on a
/// GPU, sizes and address as FP8 wants them. Of what no path takes, the one that casts after it says why.
bool casts_in_one_pass(const at::Tensor& x, int64_t parts = 1);

struct Fp8Allocation {
  Fp8Matrix matrix;
  cuda::Fp8Target target;  // the same to a kernel
};

/// Room for what `cast` wants of a matrix of as many rows as x, on its device.
Fp8Allocation allocate_fp8(const at::Tensor& x, int64_t columns, const Fp8Cast& cast);

}  // namespace teratron
