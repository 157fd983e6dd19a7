#include "teratron/bench/device_profile.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

void wait_for(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

}  // namespace

void DeviceProfile::start() {
  wait_for(device_);
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<ActivityType> activities = {ActivityType::CUDA};
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
}

std::vector<KernelRun> DeviceProfile::stop() {
  wait_for(device_);
  const auto result = torch::autograd::profiler::disableProfiler();
  std::vector<KernelRun> runs;
  for (const auto& event : result->events()) {
    if (event.deviceType() != c10::DeviceType::CUDA) continue;
    runs.push_back({.name = event.name(),
                    .start_ns = static_cast<int64_t>(event.startNs()),
                    .end_ns = static_cast<int64_t>(event.endNs())});
  }
  if (runs.empty()) {
    throw Fault(
        "the profiler saw no work of the GPU: another profiler may be attached, or libcupti is missing");
  }
  return runs;
}

}  // namespace teratron
