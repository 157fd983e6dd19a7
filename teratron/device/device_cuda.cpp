#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "teratron/base/error.h"
#include "teratron/device/available_memory.h"
#include "teratron/device/device.h"
#include "teratron/kernels/common/cuda_libraries.h"

namespace teratron {

namespace {

// CUDA counts thousands and tens: 13020 is 13.2.
std::string cuda_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

cudaDeviceProp properties_of(at::Device device) {
  const int index = device.has_index() ? device.index() : c10::cuda::current_device();
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess)
    throw Fault(fmt::format("GPU {} does not answer", index));
  return properties;
}

// Error codes of the CUDA driver for machines without a GPU (see cuda.h).
constexpr int stub_library = 34, no_device = 100;

/// Initializes the driver, which may not be installed.
int start_driver() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) return no_device;
  const auto start = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  return start ? start(0) : no_device;
}

int64_t count_gpus() {
  if (!has_cuda_libraries()) return 0;
  const int answer = start_driver();
  if (answer == no_device || answer == stub_library) return 0;
  int count = 0;
  // The runtime's error codes are the driver's.
  const cudaError_t error = answer == 0 ? cudaGetDeviceCount(&count) : static_cast<cudaError_t>(answer);
  if (error == cudaErrorNoDevice) return 0;
  if (error == cudaSuccess) return count;
  throw Fault(fmt::format(
      "this machine has a CUDA driver, but it does not start: {} (error {}). Look at `nvidia-smi`; "
      "--device cpu computes without GPUs",
      cudaGetErrorString(error), static_cast<int>(error)));
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
  static const int64_t count = count_gpus();
  return count;
}

at::Device current_gpu() {
  return {at::kCUDA, c10::cuda::current_device()};
}

std::vector<std::pair<std::string, std::string>> gpu_libraries() {
  if (!torch_has_cuda()) return {{"CUDA", "none (torch without CUDA)"}};
  if (!has_cuda_libraries()) return {{"CUDA", cuda_text(CUDART_VERSION) + " (driver: none)"}};
  int runtime = 0;
  int driver = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  const int64_t cudnn = at::detail::getCUDAHooks().versionRuntimeCuDNN();
  const std::string driver_text = driver == 0 ? "none" : cuda_text(driver);
  return {{"CUDA", fmt::format("{} (driver: {})", cuda_text(runtime), driver_text)},
          {"cuDNN", fmt::format("{}.{}.{}", cudnn / 10000, cudnn / 100 % 100, cudnn % 100)}};
}

std::optional<MemoryUse> device_memory(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  const c10::DeviceIndex index = device.has_index() ? device.index() : c10::cuda::current_device();
  const auto statistics = c10::cuda::CUDACachingAllocator::getDeviceStats(index);
  const auto& allocated = statistics.allocated_bytes[0];
  const auto& reserved = statistics.reserved_bytes[0];
  return MemoryUse{allocated.current, allocated.peak, reserved.current, reserved.peak};
}

int64_t free_memory(at::Device device) {
  const std::optional<MemoryUse> use = device_memory(device);
  if (!use) return available_host_memory();
  size_t free = 0;
  size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
  return static_cast<int64_t>(free) + use->reserved - use->allocated;
}

bool has_memory_for_graphs(at::Device device) {
  const std::optional<MemoryUse> use = device_memory(device);
  if (!use) return true;
  size_t free = 0;
  size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return false;
  constexpr int64_t workspaces = int64_t{256} << 20;
  const int64_t idle = use->reserved - use->allocated, temporary = use->max_allocated - use->allocated;
  return static_cast<int64_t>(free) + idle >= 2 * temporary + workspaces;
}

}  // namespace teratron
