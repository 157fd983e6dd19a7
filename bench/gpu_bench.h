// Times kernels on the current GPU.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>

#include "teratron/base/log.h"

namespace teratron {

inline at::Tensor device_randn(at::IntArrayRef sizes, at::ScalarType type = at::kBFloat16) {
  return at::randn(sizes, at::device(at::kCUDA).dtype(type));
}

/// Median of `runs` after five to warm up; `before` comes before each and is not timed.
inline double median_milliseconds(int runs, const std::function<void()>& before,
                                  const std::function<void()>& run) {
  std::vector<double> times;
  for (int i = 0; i < runs + 5; ++i) {
    before();
    at::cuda::CUDAEvent start(cudaEventDefault), stop(cudaEventDefault);
    start.record();
    run();
    stop.record();
    stop.synchronize();
    if (i >= 5) times.push_back(start.elapsed_time(stop));
  }
  std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
  return times[runs / 2];
}

class Bench {
 public:
  /// Measures the reference copy of 1 GiB: bytes read plus bytes written.
  Bench() : flush_(device_randn({256 << 20}, at::kHalf)) {
    const at::Tensor from = device_randn({512 << 20}), to = at::empty_like(from);
    copy_rate_ = 4.0 * static_cast<double>(from.numel()) / milliseconds([&] { to.copy_(from); }) / 1e6;
    print("{:34} {:>9} {:>9} {:>8}", "kernel", "us", "GB/s", "of copy");
    print("{:34} {:9} {:9.0f} {:8.3f}", "copy of 1 GiB", "", copy_rate_, 1.0);
  }

  void report(const std::string& name, double bytes, const std::function<void()>& run) {
    const double ms = milliseconds(run);
    const double rate = bytes / ms / 1e6;
    print("{:34} {:9.1f} {:9.0f} {:8.3f}", name, ms * 1e3, rate, rate / copy_rate_);
  }

  void report_gemm(const std::string& name, double flops, const std::function<void()>& run) {
    const double ms = milliseconds(run);
    print("{:34} {:9.1f} {:9.0f} TFLOP/s", name, ms * 1e3, flops / ms / 1e9);
  }

 private:
  double milliseconds(const std::function<void()>& run) {
    return median_milliseconds(50, [&] { flush_.fill_(1); }, run);
  }

  at::Tensor flush_;
  double copy_rate_ = 0;
};

}  // namespace teratron
