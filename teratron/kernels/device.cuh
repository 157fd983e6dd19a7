// What the device code of this layer shares: 16-byte packs, conversions, reductions over a block.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "teratron/base/dtype.h"

namespace teratron::cuda {

/// Throws a Fault if the launch before it failed.
void check_launch(const char* kernel);

/// f64 for f64, f32 for everything narrower.
template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

__device__ inline float widen(float x) {
  return x;
}
__device__ inline double widen(double x) {
  return x;
}
__device__ inline float widen(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ inline float widen(__half x) {
  return __half2float(x);
}

template <typename T, typename A>
__device__ T round_to(A x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

/// N neighbours that move with one instruction.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

/// Elements of a 16-byte pack; f64, which serves tests, goes one by one so that there is less to compile.
template <typename T>
inline constexpr int pack_size = std::is_same_v<T, double> ? 1 : 16 / sizeof(T);

template <int N, typename T>
__device__ Pack<T, N> load(const T* p) {
  return *reinterpret_cast<const Pack<T, N>*>(p);
}
template <int N, typename T>
__device__ void store(T* p, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(p) = pack;
}

/// Whether every pointer can be accessed in 16-byte packs.
template <typename... P>
bool aligned(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

/// exp(x), with exp(-inf) = 0; for f32 within a few units in the last place, and 0 below 2^-126.
__device__ inline float fast_exp(float x) {
  constexpr float log2_e = 1.4426950408889634f;
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * log2_e));
  return y;
}
__device__ inline double fast_exp(double x) {
  return exp(x);
}

/// Running maximum of a row and the sum of exp(x - max).
template <typename A>
struct RunningSoftmax {
  A max = -INFINITY;
  A sum = 0;

  /// Adds N values at once: one rescaling per pack. -inf takes no part.
  template <int N>
  __device__ void add(const A (&x)[N]) {
    A top = x[0];
#pragma unroll
    for (int i = 1; i < N; ++i) top = x[i] > top ? x[i] : top;
    if (top > max) {
      sum *= fast_exp(max - top);
      max = top;
    }
    const A base = max == -INFINITY ? A(0) : max;  // so that -inf counts 0 and NaN still shows
#pragma unroll
    for (int i = 0; i < N; ++i) sum += fast_exp(x[i] - base);
  }
  __device__ void merge(A other_max, A other_sum) {
    const A top = other_max > max ? other_max : max;
    if (top == -INFINITY) {
      sum += other_sum;
      return;
    }
    sum = sum * fast_exp(max - top) + other_sum * fast_exp(other_max - top);
    max = top;
  }
};

/// The row's maximum and sum, in every thread. `shared` has 64 elements.
template <typename A>
__device__ void block_merge(RunningSoftmax<A>& row, A* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    row.merge(__shfl_xor_sync(0xFFFFFFFFu, row.max, offset), __shfl_xor_sync(0xFFFFFFFFu, row.sum, offset));
  }
  if (warps == 1) return;
  if (lane == 0) {
    shared[warp] = row.max;
    shared[32 + warp] = row.sum;
  }
  __syncthreads();
  row.max = lane < warps ? shared[lane] : A(-INFINITY);
  row.sum = lane < warps ? shared[32 + lane] : A(0);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    row.merge(__shfl_xor_sync(0xFFFFFFFFu, row.max, offset), __shfl_xor_sync(0xFFFFFFFFu, row.sum, offset));
  }
}

/// Calls f(T{}) with the device type of `dtype`, which the callers have checked to be a float type.
template <typename F>
void with_device_type(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::f64:
      return f(double{});
    case Dtype::bf16:
      return f(__nv_bfloat16{});
    case Dtype::f16:
      return f(__half{});
    default:
      return f(float{});
  }
}

template <typename A>
__device__ A warp_sum(A x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

__device__ inline uint32_t warp_max(uint32_t x) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xFFFFFFFFu, x);
#else
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = max(x, __shfl_xor_sync(0xFFFFFFFFu, x, offset));
  return x;
#endif
}

/// Sums of K values over the block, in every thread. blockDim.x is a multiple of 32 and at most 1024;
/// `shared` has 32 K elements and must not be reused before the next barrier. Every thread gets the same
/// bits.
template <int K, typename A>
__device__ void block_sum(A (&x)[K], A* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int k = 0; k < K; ++k) x[k] = warp_sum(x[k]);
  if (warps == 1) return;
  if (lane == 0) {
#pragma unroll
    for (int k = 0; k < K; ++k) shared[k * 32 + warp] = x[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) x[k] = warp_sum(lane < warps ? shared[k * 32 + lane] : A(0));
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Multiprocessors of the current device.
int multiprocessors();
/// Bytes of shared memory that one block of the current device can ask for.
int shared_memory_limit();

}  // namespace teratron::cuda
