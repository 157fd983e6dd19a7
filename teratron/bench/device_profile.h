// What the GPU ran, seen by libtorch's profiler (Kineto over CUPTI).
#pragma once

#include <vector>

#include <c10/core/Device.h>

#include "teratron/bench/kernel_breakdown.h"

namespace teratron {

/// One recording at a time in a process; kernels of all streams of the device. Both calls wait for the device.
class DeviceProfile {
 public:
  explicit DeviceProfile(c10::Device device) : device_(device) {}
  void start();
  /// What ran since start(), copies and fills included. Throws Fault when the profiler gives nothing (another
  /// tool may hold CUPTI).
  std::vector<KernelRun> stop();

 private:
  c10::Device device_;
};

}  // namespace teratron
