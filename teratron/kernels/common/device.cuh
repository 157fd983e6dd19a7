// Shared by all device code: 16-byte packs, conversions, fast math, block reductions.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "teratron/base/dtype.h"

namespace teratron::cuda {

/// Throws a Fault if the preceding launch failed.
void check_launch(const char* kernel);
/// Throws a Fault unless `error` is success, and clears it.
void check_cuda(cudaError_t error, const char* kernel);

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

/// N neighboring elements that one instruction loads or stores.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

/// Elements of a 16-byte pack; 1 for f64, which only tests use, to compile less.
template <typename T>
inline constexpr int pack_size = std::is_same_v<T, double> ? 1 : 16 / sizeof(T);

template <int N, typename T>
__device__ Pack<T, N> load(const T* p) {
  return *reinterpret_cast<const Pack<T, N>*>(p);
}
/// To device memory.
template <int N, typename T>
__device__ void store(T* p, const Pack<T, N>& pack) {
  if constexpr (sizeof(pack) == 16) {  // explicit: the compiler may split an assignment into element stores
    uint4 w;
    memcpy(&w, &pack, sizeof(pack));
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
                 : "memory");
  } else {
    *reinterpret_cast<Pack<T, N>*>(p) = pack;
  }
}

/// Stores N values unrounded in the widest stores possible: scalar stores of neighboring threads would share
/// sectors. `p` is aligned to N values.
template <typename A, int N>
__device__ void store_values(A* p, const A (&x)[N]) {
  constexpr int M = N % pack_size<A> == 0 ? pack_size<A> : 1;
#pragma unroll
  for (int i = 0; i < N; i += M) {
    Pack<A, M> pack;
#pragma unroll
    for (int k = 0; k < M; ++k) pack.v[k] = x[i + k];
    store<M>(p + i, pack);
  }
}

/// Converts a pack to the accumulation type. 16-bit types in pairs, which takes fewer instructions: these
/// kernels are memory-bound only if they issue little else.
template <typename T, int N>
__device__ void widen(const Pack<T, N>& pack, Accumulator<T> (&x)[N]) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        const uint32_t two = *reinterpret_cast<const uint32_t*>(&pack.v[i]);
        x[i] = __uint_as_float(two << 16);
        x[i + 1] = __uint_as_float(two & 0xFFFF0000u);
      } else {
        const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pack.v[i]));
        x[i] = two.x;
        x[i + 1] = two.y;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = widen(pack.v[i]);
  }
}

/// Rounds to nearest T.
template <typename T, int N>
__device__ Pack<T, N> round_to_pack(const Accumulator<T> (&x)[N]) {
  Pack<T, N> pack;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    Two twos[N / 2];
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        twos[i / 2] = __floats2bfloat162_rn(x[i], x[i + 1]);
      } else {
        twos[i / 2] = __floats2half2_rn(x[i], x[i + 1]);
      }
    }
    memcpy(&pack, twos, sizeof(pack));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) pack.v[i] = round_to<T>(x[i]);
  }
  return pack;
}

/// Whether every pointer can be accessed in 16-byte packs.
template <typename... P>
bool aligned(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

/// 1 / x; for f32 within a unit in the last place, 0 above 2^126 and inf below 2^-126.
__device__ inline float fast_rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline double fast_rcp(double x) {
  return 1 / x;
}

/// The square root; for f32 within a unit in the last place.
__device__ inline float fast_sqrt(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline double fast_sqrt(double x) {
  return sqrt(x);
}

/// 2^x; for f32 within two units in the last place, and 0 below 2^-126.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline double fast_exp2(double x) {
  return exp2(x);
}

/// x / y; for f32 within two units in the last place where y is between 2^-126 and 2^126.
__device__ inline float fast_quotient(float x, float y) {
  return __fdividef(x, y);
}
__device__ inline double fast_quotient(double x, double y) {
  return x / y;
}

inline constexpr double log2_e = 1.4426950408889634074;

/// exp(x), with exp(-inf) = 0; for f32 within a few units in the last place, and 0 below 2^-126.
__device__ inline float fast_exp(float x) {
  return fast_exp2(x * static_cast<float>(log2_e));
}
__device__ inline double fast_exp(double x) {
  return exp(x);
}

/// Online softmax: running maximum of a row and the sum of exp(x - max).
template <typename A>
struct OnlineSoftmax {
  A max = -INFINITY;
  A sum = 0;

  /// Adds N values with one rescaling per pack. -inf contributes 0.
  template <int N>
  __device__ void add(const A (&x)[N]) {
    A top = x[0];
#pragma unroll
    for (int i = 1; i < N; ++i) top = x[i] > top ? x[i] : top;
    if (top > max) {
      sum *= fast_exp(max - top);
      max = top;
    }
    const A base = max == -INFINITY ? A(0) : max;  // so that -inf contributes 0 and NaN propagates
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

/// Merges the row's statistics over the block, in every thread. `shared` has 64 elements.
template <typename A>
__device__ void block_merge(OnlineSoftmax<A>& row, A* shared) {
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

/// Calls f(T{}) with the device type of `dtype`, a float type.
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

/// Sums of K values over the block, bitwise the same in every thread. blockDim.x is a multiple of 32 and at
/// most 1024; `shared` has 32 K elements and must not be reused before the next barrier.
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
  if (warp == 0 && lane >= warps) {  // padding for the sums of four below
#pragma unroll
    for (int k = 0; k < K; ++k) shared[k * 32 + lane] = A(0);
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const A* const warp_sums = shared + k * 32;
    x[k] = A(0);
#pragma unroll 1
    for (int w = 0; w < warps; w += 4) {
      x[k] += (warp_sums[w] + warp_sums[w + 1]) + (warp_sums[w + 2] + warp_sums[w + 3]);
    }
  }
}

/// Maximum over the block, in every thread; ignores NaN. Otherwise as block_sum.
template <typename A>
__device__ void block_max(A& x, A* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = max(x, __shfl_xor_sync(0xFFFFFFFFu, x, offset));
  if (warps == 1) return;
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  for (int w = 0; w < warps; ++w) x = max(x, shared[w]);
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Largest gridDim.y and gridDim.z; gridDim.x may be 2^31 - 1.
inline constexpr int64_t max_grid_y = 65535;

/// Number of SMs of the current device.
int sm_count();
/// Architecture that the current device's variant of the kernel was compiled for, e.g. 90 for compute
/// capability 9.0.
int compiled_arch(const void* kernel);
/// 9 for compute capability 9.0.
int compute_capability_major();
/// Maximum bytes of shared memory per block (opt-in) of the current device.
int shared_memory_limit();

/// Calls f(T{}, pack): 16-byte packs if they divide `width` and pointers are aligned, else single elements.
template <typename F>
void with_pack(Dtype dtype, int64_t width, bool is_aligned, F&& f) {
  with_device_type(dtype, [&]<typename T>(T zero) {
    if (is_aligned && width % pack_size<T> == 0) {
      f(zero, std::integral_constant<int, pack_size<T>>{});
    } else {
      f(zero, std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace teratron::cuda
