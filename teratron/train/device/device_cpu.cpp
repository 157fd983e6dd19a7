#include "teratron/train/device/device.h"

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

}  // namespace teratron
