// Launchers of reduce.h. Raw device pointers.
#pragma once

#include "teratron/kernels/common/launcher.h"

namespace teratron::cuda {

struct FlatBuffer {
  const void* data;
  int64_t n;
  Dtype dtype;
};

/// Number of 8-byte partial results in the workspace of a reduction of n elements.
TERATRON_LAUNCHER(int64_t, reduce_workspace_size, int64_t n);
TERATRON_LAUNCHER(void, sum_of_squares, const FlatBuffer& x, double* workspace, double* out,
                  CUstream_st* stream);
TERATRON_LAUNCHER(void, count_zeros, const FlatBuffer& x, int64_t* workspace, int64_t* out,
                  CUstream_st* stream);
TERATRON_LAUNCHER(void, flag_nonfinite, const FlatBuffer& x, float* flag, CUstream_st* stream);
/// Writes x.data; the factor is a double if `wide`, else a float.
TERATRON_LAUNCHER(void, scale, const FlatBuffer& x, const void* factor, bool wide, CUstream_st* stream);

struct Parts {
  const void* data[128];
  int count;
};
/// Writes out.data.
TERATRON_LAUNCHER(void, sum_parts, const FlatBuffer& out, const Parts& parts, bool average,
                  CUstream_st* stream);

}  // namespace teratron::cuda
