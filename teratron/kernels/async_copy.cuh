// Copies from global into shared memory that take no register on the way; before compute capability 8.0 they are ordinary
// ones. A thread that reads back only what it copied itself needs no barrier.
#pragma once

#include "teratron/kernels/device.cuh"

namespace teratron::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
inline constexpr bool copies_are_async = true;
#else
inline constexpr bool copies_are_async = false;
#endif

/// 16 bytes; visible to the copying thread alone until a barrier.
__device__ inline void copy_async(void* shared, const void* global) {
  if constexpr (copies_are_async) {
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global));
  } else {
    *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
  }
}
__device__ inline void end_copy_group() {
  if constexpr (copies_are_async) asm volatile("cp.async.commit_group;");
}
/// All but the newest N groups have arrived.
template <int N>
__device__ void await_copy_groups() {
  if constexpr (copies_are_async) asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

}  // namespace teratron::cuda
