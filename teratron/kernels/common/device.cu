#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/common/launch_fault.h"

namespace teratron::cuda {

void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw_launch_fault(kernel, cudaGetErrorString(error));
}

int multiprocessors() {
  int device = 0, count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  check_launch("multiprocessors");
  return count;
}

int built_for(const void* kernel) {
  cudaFuncAttributes attributes{};
  cudaFuncGetAttributes(&attributes, kernel);
  check_launch("built_for");
  return attributes.ptxVersion;
}

int shared_memory_limit() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  check_launch("shared_memory_limit");
  return bytes;
}

}  // namespace teratron::cuda
