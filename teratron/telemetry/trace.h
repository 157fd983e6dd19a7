// --profile: a trace of some steps for chrome://tracing or Perfetto, recorded by libtorch's kineto.
#pragma once

#include <filesystem>

#include <ATen/ATen.h>

namespace teratron {

struct TraceOptions {
  int64_t first = 10;  // recording starts after so many steps (--profile-step-start)
  int64_t last = 12;   // and ends after so many (--profile-step-end)
  std::filesystem::path file;
  at::Device device = at::kCPU;
};

/// Operators of the host and, on a GPU, kernels. One per process may record at a time.
class Trace {
 public:
  explicit Trace(TraceOptions options) : options_(std::move(options)) {}
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Before each step, with the number of steps done so far.
  void before_step(int64_t done);
  /// After each step; writes the file when the last one to record is over, and says so.
  void after_step(int64_t done);

 private:
  void finish();
  TraceOptions options_;
  bool recording_ = false;
};

}  // namespace teratron
