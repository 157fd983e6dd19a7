// Shared by the forward and the backward of the norms.
#pragma once

#include "teratron/kernels/device.cuh"
#include "teratron/kernels/norm_cuda.h"

namespace teratron::cuda {

/// One pack of weight or bias (zeros when null), stored as T or f32.
template <int N, typename T, typename A>
__device__ void read_parameter(const NormShape& shape, const void* parameter, int64_t column, A (&out)[N]) {
  if (parameter == nullptr) {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = A(0);
  } else if (shape.weight_dtype == shape.dtype) {
    const Pack<T, N> p = load<N>(static_cast<const T*>(parameter) + column);
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = widen(p.v[i]);
  } else {
    constexpr int M = N < 4 ? N : 4;
#pragma unroll
    for (int j = 0; j < N; j += M) {
      const Pack<float, M> p = load<M>(static_cast<const float*>(parameter) + column + j);
#pragma unroll
      for (int i = 0; i < M; ++i) out[j + i] = p.v[i];
    }
  }
}

/// The gain: weight, or 1 + weight.
template <int N, typename T, typename A>
__device__ void read_gain(const NormShape& shape, const void* weight, int64_t column, A (&out)[N]) {
  read_parameter<N, T>(shape, weight, column, out);
  const A one = shape.zero_centered ? A(1) : A(0);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] += one;
}

/// More threads would leave each too few registers for the backward.
inline constexpr int max_row_threads = 512;

/// How a row fits into the registers of a block; packs_per_thread = 0: it does not.
struct RowPlan {
  int threads;
  int packs_per_thread;
};

inline RowPlan plan_row(const NormShape& shape, int pack) {
  if (shape.width % pack != 0) return {0, 0};
  const int64_t packs = shape.width / pack;
  for (const int per : {1, 2, 4}) {
    if (packs > per * max_row_threads) continue;
    return {static_cast<int>(ceil_div(ceil_div(packs, per), 32) * 32), per};
  }
  return {0, 0};
}

}  // namespace teratron::cuda
