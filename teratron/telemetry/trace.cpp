#include "teratron/telemetry/trace.h"

#include <set>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "teratron/base/log.h"

namespace teratron {

namespace profiler = torch::profiler::impl;

void Trace::before_step(int64_t done) {
  if (recording_ || done != options_.first) return;
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO, /*report_input_shapes=*/true);
  std::set<profiler::ActivityType> activities = {profiler::ActivityType::CPU};
  if (options_.device.is_cuda()) activities.insert(profiler::ActivityType::CUDA);
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
  recording_ = true;
}

void Trace::after_step(int64_t done) {
  if (recording_ && done >= options_.last) finish();
}

void Trace::finish() {
  recording_ = false;
  if (options_.device.is_cuda()) {
    c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(options_.device.index());
  }
  torch::autograd::profiler::disableProfiler()->save(options_.file.string());
  notice("the trace of the profiled steps is {}", options_.file.string());
}

// A run may end before the last step to record.
Trace::~Trace() {
  if (!recording_) return;
  try {
    finish();
  } catch (const std::exception& error) {
    warn("the trace could not be written: {}", error.what());
  }
}

}  // namespace teratron
