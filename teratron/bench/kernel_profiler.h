// Kernels of a GPU, recorded by libtorch's profiler (Kineto over CUPTI).
#pragma once

#include <vector>

#include <c10/core/Device.h>

#include "teratron/bench/kernel_breakdown.h"

namespace teratron {

/// Records all streams of the device. One recording at a time per process. Both calls synchronize the device.
class KernelProfiler {
 public:
  explicit KernelProfiler(c10::Device device) : device_(device) {}
  void start();
  /// Kernels since start(), including memcpy and memset. Throws Fault if the profiler recorded nothing
  /// (another tool may use CUPTI).
  std::vector<KernelEvent> stop();

 private:
  c10::Device device_;
};

}  // namespace teratron
