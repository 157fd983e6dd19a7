#include "teratron/telemetry/metrics.h"

#include <algorithm>
#include <cmath>

#include "teratron/base/error.h"
#include "teratron/plan/flops.h"

namespace teratron {

double perplexity(double loss) {
  return std::exp(std::min(20.0, loss));
}

void IntervalMeter::add(const StepMetrics& step) {
  last_ = step;
  seconds_ += step.seconds;
  tokens_ += static_cast<double>(step.tokens);
  flops_ += step.flops;
  flops_full_ += step.flops_full;
  if (step.skipped) {
    ++skipped_;
    const bool nan = std::any_of(step.losses.begin(), step.losses.end(),
                                 [](const auto& loss) { return !std::isfinite(loss.second); });
    nan_ += nan ? 1 : 0;
    return;
  }
  ++advanced_;
  for (const auto& [name, value] : step.losses) {
    const auto known =
        std::find_if(sums_.begin(), sums_.end(), [&](const auto& sum) { return sum.first == name; });
    if (known == sums_.end()) {
      sums_.emplace_back(name, value);
    } else {
      known->second += value;
    }
  }
}

IntervalMetrics IntervalMeter::means() const {
  TERATRON_ASSERT(steps() > 0);
  IntervalMetrics interval;
  interval.last = last_;
  interval.last.losses = sums_;
  for (auto& [name, value] : interval.last.losses)
    value /= static_cast<double>(std::max<int64_t>(1, advanced_));
  interval.seconds_per_iteration = seconds_ / static_cast<double>(steps());
  interval.advanced = advanced_;
  interval.skipped = skipped_;
  interval.nan = nan_;
  if (seconds_ > 0.0) {
    interval.tokens_per_second = tokens_ / seconds_;
    const auto rate = [&](double flops) {
      return throughput(
          {.flops = flops, .seconds = seconds_, .world_size = world_size_, .peak_flops_per_gpu = peak_});
    };
    const Throughput causal = rate(flops_);
    const Throughput full = rate(flops_full_);
    interval.tflops_per_gpu = causal.tflops_per_gpu;
    interval.mfu = causal.mfu;
    interval.tflops_per_gpu_full = full.tflops_per_gpu;
    interval.mfu_full = full.mfu;
  }
  return interval;
}

void IntervalMeter::reset() {
  sums_.clear();
  advanced_ = skipped_ = nan_ = 0;
  seconds_ = tokens_ = flops_ = flops_full_ = 0.0;
}

}  // namespace teratron
