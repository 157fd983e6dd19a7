// Name, properties and memory of the device.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "teratron/device/memory_use.h"

namespace teratron {

/// "NVIDIA H200", or "CPU".
std::string device_name(at::Device device);
/// 90 for 9.0; 0 on CPU.
int64_t compute_capability(at::Device device);
/// Number of visible GPUs; 0 in a build without CUDA. Fault if there is a driver that does not start.
int64_t gpu_count();
/// The current GPU of this process; 0 unless its World chose another.
at::Device current_gpu();
/// Versions of the GPU libraries that are loaded, and the newest CUDA that the driver supports; empty in a
/// build without CUDA.
std::vector<std::pair<std::string, std::string>> gpu_libraries();
/// nullopt on CPU.
std::optional<MemoryUse> device_memory(at::Device device);

/// Bytes that can still be allocated: on the GPU, or in this machine or container.
int64_t free_memory(at::Device device);
/// Whether there is memory for CUDA graphs: twice what steps so far have needed beyond what is allocated
/// between them, since evaluation and optimizer cannot use the memory of the graphs.
bool has_memory_for_graphs(at::Device device);

}  // namespace teratron
