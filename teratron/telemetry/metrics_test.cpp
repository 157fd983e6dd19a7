#include "teratron/telemetry/metrics.h"

#include <cmath>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

#include "teratron/telemetry/progress.h"
#include "teratron/telemetry/timers.h"
#include "teratron/testing/scale/scale_costs.h"

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
  const std::vector<TimerReadings> readings = {
      {{"a", 3.0}}, {{"a", 1.0}, {"b", 30.0}}, {{"b", 10.0}, {"a", 2.0}}};
  for (const bool per_rank : {false, true}) {
    run_counted_ranks(3, [&](CountedGroup& group) {
      const TimerMetrics timers = reduce_timers(group, readings[group.rank()], per_rank);
      if (group.rank() < 2) {
        EXPECT_TRUE(timers.rows.empty());
        return;
      }
      ASSERT_EQ(timers.rows.size(), 2U);
      EXPECT_EQ(timers.rows[0].min_ms, 1.0);
      EXPECT_EQ(timers.rows[0].max_ms, 3.0);
      EXPECT_EQ(timers.rows[1].min_ms, 10.0);
      EXPECT_EQ(timers.rows[1].max_ms, 30.0);
      EXPECT_EQ(timers.rows[0].per_rank_ms,
                per_rank ? (std::vector<double>{3.0, 1.0, 2.0}) : std::vector<double>());
    });
  }
  SingleHostGroup alone;
  EXPECT_EQ(reduce_timers(alone, {{"a", 3.0}}, false).rows[0].max_ms, 3.0);
}

/// Up the tree and to the last rank. A rank's bytes do not grow with the number of ranks.
TEST(Timers, AreMergedOnTheWay) {
  const ScaleCosts costs = count_costs("timers", [](HostGroup& group) {
    const double milliseconds = 1.0 / static_cast<double>(3 + group.rank());
    const TimerMetrics timers = reduce_timers(group, {{"optimizer", milliseconds}}, false);
    if (group.rank() == group.size() - 1) {
      EXPECT_EQ(timers.rows.at(0).min_ms, milliseconds);
    }
  });
  for (const JobCosts& job : costs.jobs) EXPECT_EQ(job.messages, job.ranks);
  EXPECT_LT(costs.of_bytes, 1.1);
  EXPECT_LT(costs.of_most_bytes, 0.35);
}

TEST(Progress, Bar) {
  ProgressState state = {
      .iteration = 340, .total = 1000, .save_interval = 100, .seconds_per_iteration = 0.412};
  EXPECT_EQ(progress_bar(state),
            "[########----------------]  34% 340/1000 | 412 ms/it | left 4m32s | next save 25s");
  state.seconds_since = 10;
  EXPECT_EQ(progress_text(state), " 34% 340/1000 | 412 ms/it | left 4m22s | next save 15s");
  state.seconds_since = 100;
  EXPECT_EQ(progress_text(state), " 34% 340/1000 | 412 ms/it | left 2m52s | next save 0s")
      << "a step that takes long";
  EXPECT_EQ(progress_bar({.iteration = 5, .total = 5, .save_interval = 2, .seconds_per_iteration = 1.0}),
            "[########################] 100% 5/5 | 1000 ms/it | left 0s");
  EXPECT_EQ(progress_bar({}), "[------------------------]   0% 0/0");
  const ProgressState last = {
      .iteration = 95, .total = 98, .save_interval = 10, .seconds_per_iteration = 1.0};
  EXPECT_NE(progress_text(last).find("next save 3s"), std::string::npos) << "the end saves too";
}

TEST(Progress, TimeOfAStep) {
  Progress progress({.total = 3}, {});
  progress.step(1, 9.0);
  EXPECT_DOUBLE_EQ(progress.seconds_per_iteration(), 9.0);
  progress.step(2, 1.0);
  EXPECT_DOUBLE_EQ(progress.seconds_per_iteration(), 1.0) << "the slow first step is forgotten";
  progress.step(3, 2.0);
  EXPECT_DOUBLE_EQ(progress.seconds_per_iteration(), 1.1);
}

using std::chrono::milliseconds;

// What Progress hands to one of its outputs.
struct Texts {
  std::mutex mutex;
  std::vector<std::string> all;
  std::function<void(std::string_view)> sink() {
    return [this](std::string_view text) {
      const std::lock_guard lock(mutex);
      all.emplace_back(text);
    };
  }
  bool contains(std::string_view part) {
    const std::lock_guard lock(mutex);
    return std::any_of(all.begin(), all.end(),
                       [&](const auto& text) { return text.find(part) != text.npos; });
  }
  void wait_for(std::string_view part) {
    for (int i = 0; i < 5000 && !contains(part); ++i) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_TRUE(contains(part)) << part;
  }
};

TEST(Progress, BarFromTheStartToTheEnd) {
  Texts bars;
  {
    Progress progress({.total = 3}, {.bar = bars.sink(), .redraw = milliseconds(1)});
    bars.wait_for(" 0/3");
    progress.step(1, 1.0);
    bars.wait_for(" 1/3 | 1000 ms/it");
  }
  EXPECT_EQ(bars.all.back(), "") << "it is removed";
}

TEST(Progress, AnEvaluationTakesThePlaceOfTheSteps) {
  Texts bars;
  Progress progress({.total = 3}, {.bar = bars.sink(), .redraw = milliseconds(1)});
  progress.step(1, 1.0);
  progress.evaluating(0, 50);
  bars.wait_for("] evaluation   0% 0/50");
  progress.evaluating(20, 50);
  bars.wait_for("] evaluation  40% 20/50 | ");
  progress.evaluated();
  bars.wait_for("]  33% 1/3 | 1000 ms/it");
}

TEST(Progress, LinesOnlyInSilence) {
  Texts lines;
  {
    Progress progress({.total = 3},
                      {.line = lines.sink(), .redraw = milliseconds(1), .silence = milliseconds(200)});
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < milliseconds(400)) progress.logged();
    EXPECT_EQ(lines.all.size(), 0U) << lines.all.front();
    progress.step(2, 1.0);
    lines.wait_for("progress:  66% 2/3");
  }
}

TEST(Progress, LinesWithoutATerminal) {
  const ProgressOutput plain = progress_output([](const char*) { return std::nullopt; });
  EXPECT_TRUE(plain.line && !plain.bar);
  EXPECT_EQ(plain.silence, std::chrono::seconds(30));
  const ProgressOutput launched =
      progress_output([](const char*) { return std::optional<std::string>("launcher"); });
  ASSERT_TRUE(launched.bar && !launched.line);
  testing::internal::CaptureStdout();
  launched.bar("[##--]");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "\r[##--]\n");
}

}  // namespace
}  // namespace teratron
