// Builds without CUDA.
#include "teratron/base/error.h"
#include "teratron/device/available_memory.h"
#include "teratron/device/copy_stream.h"
#include "teratron/device/device.h"
#include "teratron/device/device_graph.h"

namespace teratron {

std::string device_name(at::Device) {
  return "CPU";
}

int64_t compute_capability(at::Device) {
  return 0;
}

int64_t gpu_count() {
  return 0;
}

at::Device current_gpu() {
  return {at::kCUDA, 0};
}

std::vector<std::pair<std::string, std::string>> gpu_libraries() {
  return {};
}

std::optional<MemoryUse> device_memory(at::Device) {
  return std::nullopt;
}

std::unique_ptr<CopyStream> make_gpu_copy_stream(at::Device) {
  TERATRON_ASSERT(false, "this build has no CUDA");
}

int64_t free_memory(at::Device) {
  return available_host_memory();
}

bool has_memory_for_graphs(at::Device) {
  return true;
}

std::unique_ptr<DeviceGraph> capture_on_gpu(const DeviceWork&, const DeviceGraph*) {
  TERATRON_ASSERT(false, "this build has no CUDA");
}

}  // namespace teratron
