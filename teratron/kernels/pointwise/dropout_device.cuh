// The dropout mask of a pack of neighboring elements.
#pragma once

#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/pointwise/dropout_mask.h"

namespace teratron::cuda {

/// x[i] <- kept ? x[i] * scale : 0, for the elements with global indices first, first + 1, ...
template <int N, typename A>
__device__ void apply_mask(const DropoutMask& mask, uint64_t first, A (&x)[N]) {
  const A scale = static_cast<A>(mask.scale);
  const bool keeps_some = mask.threshold <= 0xFFFFFFFFu;
  const uint32_t threshold = static_cast<uint32_t>(mask.threshold);
  if (N % 4 == 0 && first % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const PhiloxWords words = philox(mask.key, (first + i) / 4);
#pragma unroll
      for (int k = 0; k < 4 && i + k < N; ++k) {
        x[i + k] = keeps_some && words.word[k] >= threshold ? x[i + k] * scale : A(0);
      }
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < N; ++i) {
    const uint64_t index = first + i;
    const PhiloxWords words = philox(mask.key, index / 4);
    const uint32_t low = index % 2 == 0 ? words.word[0] : words.word[1];
    const uint32_t high = index % 2 == 0 ? words.word[2] : words.word[3];
    const A factor = keeps_some && (index % 4 < 2 ? low : high) >= threshold ? scale : A(0);
#pragma unroll
    for (int k = 0; k < N; ++k) {  // a dynamic index would spill x to local memory
      if (k == i) x[k] = factor == A(0) ? A(0) : x[k] * factor;
    }
  }
}

}  // namespace teratron::cuda
