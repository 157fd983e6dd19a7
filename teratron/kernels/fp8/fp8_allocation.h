// Host helpers of FP8 kernels. Internal to kernels.
#pragma once

#include <vector>

#include "teratron/kernels/fp8/fp8.h"
#include "teratron/kernels/fp8/launchers.h"

namespace teratron {

/// Whether fused kernels support x [R, C], C being `parts` matrices side by side: bf16 or f16 on a GPU, sizes
/// and address as FP8 requires. Inputs that no path supports fail the checks of the unfused path.
bool can_fuse_fp8_cast(const at::Tensor& x, int64_t parts = 1);

struct Fp8Allocation {
  Fp8Matrix matrix;
  cuda::Fp8Output output;  // the same for a kernel
};

/// Allocates what `cast` requests of a matrix with x's rows and device.
Fp8Allocation allocate_fp8(const at::Tensor& x, int64_t columns, const Fp8Cast& cast);

/// For a kernel.
cuda::Fp8RowGroups row_groups(const Fp8Groups& groups);

struct Fp8Group {
  int64_t begin, rows;
  int64_t padded_begin, padded_rows;  // columns of the transpose
};
/// Waits for the device.
std::vector<Fp8Group> read_groups(const Fp8Groups& groups);

}  // namespace teratron
