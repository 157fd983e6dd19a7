#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include "teratron/base/error.h"
#include "teratron/train/device.h"

namespace teratron {

namespace {

// CUDA counts thousands and tens: 13020 is 13.2.
std::string cuda_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

cudaDeviceProp properties_of(at::Device device) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device.index()) != cudaSuccess) {
    throw Fault(fmt::format("GPU {} does not answer", static_cast<int>(device.index())));
  }
  return properties;
}

}  // namespace

std::string device_name(at::Device device) {
  return device.is_cpu() ? "CPU" : properties_of(device).name;
}

int64_t compute_capability(at::Device device) {
  if (device.is_cpu()) return 0;
  const cudaDeviceProp properties = properties_of(device);
  return properties.major * 10 + properties.minor;
}

int64_t gpu_count() {
  return c10::cuda::device_count();
}

at::Device current_gpu() {
  return {at::kCUDA, c10::cuda::current_device()};
}

std::vector<std::pair<std::string, std::string>> gpu_libraries() {
  int runtime = 0;
  int driver = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  const std::string driver_text = driver == 0 ? "none" : cuda_text(driver);
  const int64_t cudnn = at::detail::getCUDAHooks().versionRuntimeCuDNN();
  return {{"CUDA", fmt::format("{} (driver: {})", cuda_text(runtime), driver_text)},
          {"cuDNN", fmt::format("{}.{}.{}", cudnn / 10000, cudnn / 100 % 100, cudnn % 100)}};
}

std::optional<MemoryUse> device_memory(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  const auto statistics = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  const auto& allocated = statistics.allocated_bytes[0];
  const auto& reserved = statistics.reserved_bytes[0];
  return MemoryUse{allocated.current, allocated.peak, reserved.current, reserved.peak};
}

}  // namespace teratron
