// Shared memory of the blocks of a cluster (compute capability 9.0).
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace teratron::cuda {

/// A barrier of all threads of the cluster, after which they see what the others wrote.
__device__ inline void cluster_sync() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}

/// A value in shared memory, of the same place in block `rank` of the cluster.
__device__ inline float read_of_block(const float* own, int rank) {
  float value = *own;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(own)), there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
#endif
  return value;
}

}  // namespace teratron::cuda
