// Copies from global into shared memory that take no register on the way (compute capability 8.0). A thread that reads
// back only what it copied itself needs no barrier.
#pragma once

#include "teratron/kernels/device.cuh"

namespace teratron::cuda {

/// 16 bytes; visible to the copying thread alone until a barrier.
__device__ inline void copy_async(void* shared, const void* global) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global));
}
__device__ inline void end_copy_group() {
  asm volatile("cp.async.commit_group;");
}
/// All but the newest N groups have arrived.
template <int N>
__device__ void await_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

}  // namespace teratron::cuda
