// Decays and documents of the tokens of a chunk, for the kernels that write ScanTokens and their gradients. A
// lane has two tokens.
#pragma once

#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/mamba/launchers.h"

namespace teratron::cuda {

__device__ inline float softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}

/// Sums over the lanes up to this one.
__device__ inline float inclusive_scan(float x) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_up_sync(0xFFFFFFFFu, x, offset);
    if (lane >= offset) x += other;
  }
  return x;
}

/// The gradients of two decays' logarithms from those of gamma: sums from each token on.
__device__ inline float2 suffix_sums(float2 dgamma) {
  const int lane = threadIdx.x % 32;
  float after = dgamma.x + dgamma.y;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_down_sync(0xFFFFFFFFu, after, offset);
    if (lane + offset < 32) after += other;
  }
  return make_float2(after, after - dgamma.x);
}

/// Where the documents of this lane's tokens, and of the chunk's last, start; see ScanTokens::first.
struct ChunkStarts {
  int own[2], last;

  __device__ ChunkStarts(const ScanShape& shape, const int* first, int batch, int chunk)
      : own{-1, -1}, last(-1) {
    if (first == nullptr) return;
    const int* const from = first + (int64_t{batch} * shape.chunks + chunk) * scan_chunk;
    own[0] = from[threadIdx.x % 32 * 2];
    own[1] = from[threadIdx.x % 32 * 2 + 1];
    last = from[scan_chunk - 1];
  }
};

/// Writes gamma, start and end of two tokens, `at` and the next, from the logarithms g of their decays.
__device__ inline void write_decays(const ScanTokens& tokens, int64_t at, float2 g,
                                    const ChunkStarts& starts) {
  const int token = threadIdx.x % 32 * 2;
  const float sum = inclusive_scan(g.x + g.y), low = sum - g.y;
  const float last = __shfl_sync(0xFFFFFFFFu, sum, 31);
  *reinterpret_cast<float2*>(tokens.gamma + at) = make_float2(low, sum);
  *reinterpret_cast<float2*>(tokens.start + at) =
      make_float2(starts.own[0] < 0 ? expf(low) : 0.0f, starts.own[1] < 0 ? expf(sum) : 0.0f);
  *reinterpret_cast<float2*>(tokens.end + at) = make_float2(
      token >= starts.last ? expf(last - low) : 0.0f, token + 1 >= starts.last ? expf(last - sum) : 0.0f);
}

}  // namespace teratron::cuda
