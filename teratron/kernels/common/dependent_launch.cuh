// Programmatic dependent launch (compute capability 9.0 and above): the blocks of a kernel start while the
// kernel before it in the stream ends, so that launch, address arithmetic and loads of weights are hidden.
//
// A kernel that may be launched so calls wait_for_predecessor() in every thread before it touches what other
// kernels write, then release_successor(). A successor thus starts when all blocks have passed their wait:
// what is older than its predecessor is complete.
//
// Only launches that are captured in a CUDA graph overlap: between the launches of eager code the host is
// the limit, and a kernel might read weights that its predecessor writes. In a graph of inference none does.
#pragma once

#include <utility>

#include "teratron/kernels/common/device.cuh"

namespace teratron::cuda {

__device__ inline void wait_for_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void release_successor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

struct LaunchShape {
  dim3 grid, block;
  int shared_bytes = 0;
  int cluster = 1;  // blocks along x that run at the same time; above 1 from compute capability 9.0 on
};

/// Whether a launch on the stream may overlap its predecessor.
bool overlaps_predecessor(cudaStream_t stream);

template <typename... Parameters, typename... Arguments>
void launch_dependent(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
                      Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  if (overlaps_predecessor(stream)) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs++].val.clusterDim.z = 1;
  }
  cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...);
}

}  // namespace teratron::cuda
