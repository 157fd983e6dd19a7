// Reading of weights in T or in f32 (launchers.h).
#pragma once

#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/mamba/launchers.h"

namespace teratron::cuda {

/// There must be weights.
template <typename T>
__device__ float weight_at(const WeightVector& weights, int64_t i) {
  return weights.wide ? static_cast<const float*>(weights.data)[i]
                      : widen(static_cast<const T*>(weights.data)[i]);
}
/// `without` if there are none.
template <typename T>
__device__ float weight_at(const WeightVector& weights, int64_t i, float without) {
  return weights.data == nullptr ? without : weight_at<T>(weights, i);
}

}  // namespace teratron::cuda
