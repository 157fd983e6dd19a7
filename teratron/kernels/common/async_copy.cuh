// cp.async: copies from global to shared memory that bypass registers; ordinary copies before compute
// capability 8.0. A thread that reads back only what it copied itself needs no barrier.
#pragma once

#include "teratron/kernels/common/device.cuh"

namespace teratron::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
inline constexpr bool has_cp_async = true;
#else
inline constexpr bool has_cp_async = false;
#endif

/// A 32-bit shared-memory address: the compiler would recompute a generic pointer's at every use.
using SharedAddress = uint32_t;
__device__ inline SharedAddress shared_address(const void* shared) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(shared));
}

/// Copies 16 bytes, visible only to the copying thread until a barrier.
__device__ inline void cp_async(SharedAddress shared, const void* global) {
  if constexpr (has_cp_async) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
  } else {
    const uint4 x = *static_cast<const uint4*>(global);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
  }
}
/// Copies 4 or 16 bytes, or writes zeros if not `valid`; the global address is valid in any case.
template <int bytes>
__device__ void cp_async_or_zero(SharedAddress shared, const void* global, bool valid) {
  static_assert(has_cp_async && (bytes == 4 || bytes == 16));
  const int read = valid ? bytes : 0;
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(read)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(read)
                 : "memory");
  }
}
/// Reads 16 bytes.
template <typename P>
__device__ P load_shared(SharedAddress shared) {
  static_assert(sizeof(P) == 16);
  union {
    uint4 words;
    P pack;
  };
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(shared));
  return pack;
}
__device__ inline void cp_async_commit() {
  if constexpr (has_cp_async) asm volatile("cp.async.commit_group;");
}
/// Waits until all but the newest N groups have arrived.
template <int N>
__device__ void cp_async_wait() {
  if constexpr (has_cp_async) asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

}  // namespace teratron::cuda
