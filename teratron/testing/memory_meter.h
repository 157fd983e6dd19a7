// Bytes of tensors that this thread allocates on the CPU.
#pragma once

#include <algorithm>
#include <memory>

#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "teratron/kernels/gemm/gemm_cpu.h"

namespace teratron {

/// Counts while it lives.
class MemoryMeter {
 public:
  int64_t live() const { return counter_->live; }
  int64_t peak() const { return counter_->peak; }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      live += bytes;
      peak = std::max(peak, live);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t live = 0;
    int64_t peak = 0;
  };
  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counter_};
};

/// Whether this processor computes in another dtype, some products at least: there are copies then, which
/// GPUs do not have.
inline bool computes_in_f32(at::ScalarType dtype) {
  return at::isReducedFloatingType(dtype) && cpu::half_gemm_here(dtype) != cpu::HalfGemm::fast;
}

}  // namespace teratron
