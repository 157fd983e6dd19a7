#include "teratron/bench/kernel_profiler.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

void synchronize(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

}  // namespace

void KernelProfiler::start() {
  synchronize(device_);
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<ActivityType> activities = {ActivityType::CUDA};
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
}

std::vector<KernelEvent> KernelProfiler::stop() {
  synchronize(device_);
  const auto result = torch::autograd::profiler::disableProfiler();
  std::vector<KernelEvent> events;
  for (const auto& event : result->events()) {
    if (event.deviceType() != c10::DeviceType::CUDA) continue;
    events.push_back({.name = event.name(),
                      .start_ns = static_cast<int64_t>(event.startNs()),
                      .end_ns = static_cast<int64_t>(event.endNs())});
  }
  if (events.empty()) {
    throw Fault("the profiler recorded no kernels: another profiler may be attached, or libcupti is missing");
  }
  return events;
}

}  // namespace teratron
