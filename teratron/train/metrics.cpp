#include "teratron/train/metrics.h"

#include <algorithm>
#include <cmath>

#include "teratron/base/error.h"
#include "teratron/train/flops.h"

namespace teratron {

double perplexity(double loss) {
  return std::exp(std::min(20.0, loss));
}

void IntervalMeter::add(const StepMetrics& step) {
  last_ = step;
  seconds_ += step.seconds;
  tokens_ += static_cast<double>(step.tokens);
  flops_ += step.flops;
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
    const Throughput rate = throughput(
        {.flops = flops_, .seconds = seconds_, .world_size = world_size_, .peak_flops_per_gpu = peak_});
    interval.tflops_per_gpu = rate.tflops_per_gpu;
    interval.mfu = rate.mfu;
  }
  return interval;
}

void IntervalMeter::reset() {
  sums_.clear();
  advanced_ = skipped_ = nan_ = 0;
  seconds_ = tokens_ = flops_ = 0.0;
}

}  // namespace teratron
