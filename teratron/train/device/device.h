// The device of a run: its name and its memory.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "teratron/telemetry/metrics.h"

namespace teratron {

/// "NVIDIA H200", or "CPU".
std::string device_name(at::Device device);
/// 90 for 9.0; 0 on CPU.
int64_t compute_capability(at::Device device);
/// Number of visible GPUs; 0 in a build without CUDA. Throws a Fault where there is a driver that does not start.
int64_t gpu_count();
/// The GPU that this process computes on; 0 unless its World chose another.
at::Device current_gpu();
/// Versions of the GPU's libraries in use, and the greatest CUDA that the driver allows; empty in a build without CUDA.
std::vector<std::pair<std::string, std::string>> gpu_libraries();
/// Of PyTorch's caching allocator; nothing on CPU.
std::optional<MemoryUse> device_memory(at::Device device);

}  // namespace teratron
