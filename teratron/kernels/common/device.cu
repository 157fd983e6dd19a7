// Queries of the device and errors of launches, for the launchers of all kernels. No kernels.
#include "teratron/kernels/common/dependent_launch.cuh"
#include "teratron/kernels/common/launch_fault.h"

namespace teratron::cuda {

void check_launch(const char* kernel) {
  check_cuda(cudaGetLastError(), kernel);
}

void check_cuda(cudaError_t error, const char* kernel) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears it, so that the next check does not report it again
  throw_launch_fault(kernel, cudaGetErrorString(error));
}

int sm_count() {
  int device = 0, count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  check_launch("sm_count");
  return count;
}

int compiled_arch(const void* kernel) {
  cudaFuncAttributes attributes{};
  cudaFuncGetAttributes(&attributes, kernel);
  check_launch("compiled_arch");
  return attributes.ptxVersion;
}

int shared_memory_limit() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  check_launch("shared_memory_limit");
  return bytes;
}

int compute_capability_major() {
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  check_launch("compute_capability_major");
  return major;
}

bool overlaps_predecessor(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "overlaps_predecessor");
  return status == cudaStreamCaptureStatusActive && compute_capability_major() >= 9;
}

}  // namespace teratron::cuda
