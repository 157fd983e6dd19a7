// Launchers of reduce.h. Raw device pointers.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"

struct CUstream_st;

namespace teratron::cuda {

struct FlatBuffer {
  const void* data;
  int64_t n;
  Dtype dtype;
};

/// How many 8-byte partial results a reduction of n elements writes.
int64_t reduce_partials(int64_t n);
void sum_of_squares(const FlatBuffer& x, double* partial, double* out, CUstream_st* stream);
void count_zeros(const FlatBuffer& x, int64_t* partial, int64_t* out, CUstream_st* stream);
void flag_nonfinite(const FlatBuffer& x, float* flag, CUstream_st* stream);
/// x.data is written; the factor is a double if `wide`, else a float.
void scale(const FlatBuffer& x, const void* factor, bool wide, CUstream_st* stream);

struct Parts {
  const void* data[128];
  int count;
};
/// out.data is written.
void sum_parts(const FlatBuffer& out, const Parts& parts, bool average, CUstream_st* stream);

}  // namespace teratron::cuda
