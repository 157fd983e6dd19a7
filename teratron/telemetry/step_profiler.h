// --profile: a trace of some steps for chrome://tracing or Perfetto, recorded by libtorch's Kineto.
#pragma once

#include <filesystem>

#include <ATen/ATen.h>

namespace teratron {

struct StepProfilerOptions {
  int64_t first = 10;  // starts after this many steps (--profile-step-start)
  int64_t last = 12;   // stops after this many steps (--profile-step-end)
  std::filesystem::path file;
  at::Device device = at::kCPU;
};

/// Records host operators and, on a GPU, kernels. One recording at a time per process.
class StepProfiler {
 public:
  explicit StepProfiler(StepProfilerOptions options);
  ~StepProfiler();
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;

  /// Before each step; `done`: completed steps.
  void before_step(int64_t done);
  /// After each step; after the last one to record, writes the file and prints its name.
  void after_step(int64_t done);

 private:
  void finish();
  StepProfilerOptions options_;
  bool recording_ = false;
};

}  // namespace teratron
