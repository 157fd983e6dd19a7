#include "teratron/telemetry/metrics.h"

#include <cmath>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

#include "teratron/telemetry/progress.h"
#include "teratron/telemetry/timers.h"

namespace teratron {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

StepMetrics step(int64_t iteration, double loss, bool skipped = false) {
  return {.iteration = iteration,
          .losses = {{"lm loss", loss}},
          .skipped = skipped,
          .seconds = 0.5,
          .tokens = 1000,
          .flops = 4e12};
}

TEST(IntervalMeter, AveragesOverStepsThatWereNotSkipped) {
  IntervalMeter meter({.world_size = 2, .peak_flops_per_gpu = 8e12});
  meter.add(step(1, 4.0));
  meter.add(step(2, kInf, true));
  meter.add(step(3, 9.0, true));  // overflow in the gradients alone
  meter.add(step(4, 3.0));
  const IntervalMetrics interval = meter.means();
  EXPECT_EQ(interval.last.iteration, 4);
  EXPECT_DOUBLE_EQ(interval.last.losses.at(0).second, 3.5);
  EXPECT_EQ(interval.advanced, 2);
  EXPECT_EQ(interval.skipped, 2);
  EXPECT_EQ(interval.nan, 1) << "only a skipped step with a bad loss counts";
  EXPECT_DOUBLE_EQ(interval.seconds_per_iteration, 0.5);
  EXPECT_DOUBLE_EQ(interval.tokens_per_second, 2000.0);
  EXPECT_DOUBLE_EQ(interval.tflops_per_gpu, 4.0);
  EXPECT_DOUBLE_EQ(interval.mfu, 0.5);
  EXPECT_EQ(meter.steps(), 4) << "reading does not reset";
  meter.reset();
  EXPECT_EQ(meter.steps(), 0);
  meter.add(step(5, 1.0));
  EXPECT_DOUBLE_EQ(meter.means().last.losses.at(0).second, 1.0);
}

TEST(IntervalMeter, NanOfATrainedStepStaysVisible) {
  IntervalMeter meter({});
  meter.add(step(1, std::nan("")));
  EXPECT_TRUE(std::isnan(meter.means().last.losses.at(0).second));
  EXPECT_EQ(meter.means().nan, 0);
}

TEST(IntervalMeter, NothingButSkippedSteps) {
  IntervalMeter meter({});
  meter.add(step(1, kInf, true));
  EXPECT_TRUE(meter.means().last.losses.empty());
  EXPECT_EQ(meter.means().skipped, 1);
}

TEST(Perplexity, IsCapped) {
  EXPECT_DOUBLE_EQ(perplexity(2.0), std::exp(2.0));
  EXPECT_DOUBLE_EQ(perplexity(50.0), std::exp(20.0));
}

TEST(Timers, ScopesAddUpAndLevelsFilter) {
  Timers timers(1);
  for (int i = 0; i < 2; ++i) {
    const auto outer = timers.scope("outer", 1);
    const auto inner = timers.scope("hidden", 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const TimerReadings readings = timers.milliseconds(2);
  ASSERT_EQ(readings.size(), 1U);
  EXPECT_EQ(readings[0].first, "outer");
  EXPECT_GE(readings[0].second, 10.0);
  EXPECT_LT(readings[0].second, 1000.0);
  timers.reset();
  EXPECT_TRUE(timers.milliseconds(1).empty());
}

TEST(Timers, SynchronizesBeforeEachReading) {
  int calls = 0;
  Timers timers(0, [&calls] { ++calls; });
  {
    const auto timed = timers.scope("a");
  }
  {
    const auto unused = timers.scope("b", 1);
  }
  EXPECT_EQ(calls, 2);
}

TEST(Timers, ReducedOverRanks) {
  const TimerMetrics timers =
      reduce_timers({{{"a", 3.0}}, {{"a", 1.0}, {"b", 30.0}}, {{"b", 10.0}, {"a", 2.0}}});
  ASSERT_EQ(timers.rows.size(), 2U);
  EXPECT_EQ(timers.rows[0].min_ms, 1.0);
  EXPECT_EQ(timers.rows[0].max_ms, 3.0);
  EXPECT_EQ(timers.rows[1].min_ms, 10.0);
  EXPECT_EQ(timers.rows[1].max_ms, 30.0);
  EXPECT_EQ(timers.rows[0].per_rank_ms, (std::vector<double>{3.0, 1.0, 2.0}));
}

TEST(Progress, Line) {
  const ProgressState state = {
      .iteration = 340, .total = 1000, .save_interval = 100, .seconds_per_iteration = 0.412};
  EXPECT_EQ(render_progress(state, 120),
            "[########----------------]  34% 340/1000 | 412 ms/it | left 4m32s | next save 25s");
  EXPECT_EQ(render_progress(state, 20).size(), 20U);
  EXPECT_EQ(
      render_progress({.iteration = 5, .total = 5, .save_interval = 2, .seconds_per_iteration = 1.0}, 120),
      "[########################] 100% 5/5 | 1000 ms/it | left 0s");
  EXPECT_EQ(render_progress({}, 120), "[------------------------]   0% 0/0");
  const ProgressState last = {
      .iteration = 95, .total = 98, .save_interval = 10, .seconds_per_iteration = 1.0};
  EXPECT_NE(render_progress(last, 120).find("next save 3s"), std::string::npos) << "the end saves too";
}

TEST(Progress, SilentWithoutATerminal) {
  testing::internal::CaptureStderr();
  {
    ProgressBar bar({.total = 3});
    EXPECT_FALSE(bar.enabled());
    bar.step(1, 9.0);
    EXPECT_DOUBLE_EQ(bar.seconds_per_iteration(), 9.0);
    bar.step(2, 1.0);
    EXPECT_DOUBLE_EQ(bar.seconds_per_iteration(), 1.0) << "the slow first step is forgotten";
    bar.step(3, 2.0);
    EXPECT_DOUBLE_EQ(bar.seconds_per_iteration(), 1.1);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  {
    ProgressBar bar({.total = 3}, true);
    bar.step(1, 1.0);
  }
  const std::string drawn = testing::internal::GetCapturedStderr();
  EXPECT_NE(drawn.find("1/3"), std::string::npos);
  EXPECT_TRUE(drawn.ends_with("\r\x1b[K")) << "it cleans up";
}

}  // namespace
}  // namespace teratron
