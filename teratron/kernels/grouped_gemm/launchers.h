// Launchers of grouped_gemm.h. Raw device pointers.
#pragma once

#include "teratron/kernels/common/launcher.h"

namespace teratron::cuda {

inline constexpr int64_t grouped_gemm_max_groups = 1024;

/// Whether the current device has the kernels: compute capability 9.0.
TERATRON_LAUNCHER(bool, has_grouped_gemm, );

/// Group g is the rows [ends[g - 1], ends[g]).
struct RowGroups {
  const int32_t* ends;
  int64_t count;  // at most grouped_gemm_max_groups
  int64_t rows;   // of the matrices, from 1 on; rows from the last end on belong to no group
};

/// out [rows, n] = x [rows, k] w_g^T, or x w_g if `w_mn_major`, in bf16. n and k multiples of 8, all 16-byte
/// aligned.
struct GroupedGemmArgs {
  RowGroups groups;
  int64_t n, k;
  const void* x;
  const void* w;     // of each group [n, k], or [k, n]
  int64_t w_stride;  // elements from one group's to the next, a multiple of 8
  bool w_mn_major;
  void* out;
};
TERATRON_LAUNCHER(void, grouped_gemm, const GroupedGemmArgs& args, CUstream_st* stream);

/// dw_g [m, n] = (add: dw_g +) dy_g^T x_g of bf16 dy [rows, m], x [rows, n], in f32; zero of groups without
/// rows. m and n multiples of 8, all 16-byte aligned.
struct GroupedWeightGradientArgs {
  RowGroups groups;
  int64_t m, n;
  const void *dy, *x;
  float* dw;
  int64_t dw_stride;  // elements from one group's to the next, a multiple of 4
  bool add;
};
TERATRON_LAUNCHER(void, grouped_weight_gradient, const GroupedWeightGradientArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
