#include "teratron/telemetry/step_profiler.h"

#include <cstdlib>
#include <set>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "teratron/base/log.h"

namespace teratron {

namespace profiler = torch::profiler::impl;

StepProfiler::StepProfiler(StepProfilerOptions options) : options_(std::move(options)) {
  // Kineto reads the properties of GPUs even if none is recorded, and reports an error where there is none.
  constexpr const char* above_errors = "5";
  if (options_.device.is_cpu()) setenv("KINETO_LOG_LEVEL", above_errors, /*overwrite=*/0);
}

void StepProfiler::before_step(int64_t done) {
  if (recording_ || done != options_.first) return;
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO, /*report_input_shapes=*/true);
  std::set<profiler::ActivityType> activities = {profiler::ActivityType::CPU};
  if (options_.device.is_cuda()) activities.insert(profiler::ActivityType::CUDA);
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
  recording_ = true;
}

void StepProfiler::after_step(int64_t done) {
  if (recording_ && done >= options_.last) finish();
}

void StepProfiler::finish() {
  recording_ = false;
  if (options_.device.is_cuda()) {
    c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(options_.device.index());
  }
  torch::autograd::profiler::disableProfiler()->save(options_.file.string());
  notice("wrote the trace of the profiled steps to {}", options_.file.string());
}

// The run may end before the last step to record.
StepProfiler::~StepProfiler() {
  if (!recording_) return;
  try {
    finish();
  } catch (const std::exception& error) {
    warn("could not write the trace: {}", error.what());
  }
}

}  // namespace teratron
