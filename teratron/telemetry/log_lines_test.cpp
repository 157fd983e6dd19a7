#include "teratron/telemetry/log_lines.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <regex>

#include <gtest/gtest.h>

namespace teratron {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

IntervalMetrics example() {
  IntervalMetrics interval;
  interval.last = {.iteration = 1200,
                   .consumed_samples = 614400,
                   .global_batch_size = 512,
                   .learning_rate = 3e-4,
                   .losses = {{"lm loss", 2.41370001}},
                   .loss_scale = 1.0,
                   .grad_norm = 0.8304};
  interval.seconds_per_iteration = 0.4123;
  interval.advanced = 10;
  interval.tokens_per_second = 1.27e6;
  interval.tflops_per_gpu = 507.54;
  return interval;
}

/// Fixes the time zone, so that local times are known.
class LogLines : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("TZ", "UTC", 1);
    tzset();
  }
};

TEST_F(LogLines, MegatronStepLine) {
  const StepLineOptions options = {.train_iters = 50000, .wall_time = 1769860800.123456};
  EXPECT_EQ(
      megatron_step_line(example(), options),
      " [2026-01-31 12:00:00.123456] iteration     1200/   50000 | consumed samples:       614400 | elapsed "
      "time "
      "per iteration (ms): 412.3 | learning rate: 3.000000E-04 | global batch size:   512 | lm loss: "
      "2.413700E+00 | loss scale: 1.0 | grad norm: 0.830 | number of skipped iterations:   0 | number of nan "
      "iterations:   0 |");
}

TEST_F(LogLines, MegatronStepLineWithEverything) {
  IntervalMetrics interval = example();
  interval.last.skipped_samples = 1024;
  interval.last.losses = {{"lm loss", 2.0}, {"sop loss", 0.0}, {"bad loss", kNan}, {"negative loss", -1.0}};
  interval.last.loss_scale = 4294967296.0;
  interval.last.num_zeros = 17;
  interval.last.params_norm = 123.45678;
  interval.skipped = 2;
  interval.nan = 1;
  const StepLineOptions options = {.train_iters = 50000, .wall_time = 0.0, .log_throughput = true};
  EXPECT_EQ(
      megatron_step_line(interval, options),
      " [1970-01-01 00:00:00.000000] iteration     1200/   50000 | consumed samples:       614400 | skipped "
      "samples:         1024 | elapsed time per iteration (ms): 412.3 | throughput per GPU (TFLOP/s/GPU): "
      "507.5 | "
      "learning rate: 3.000000E-04 | global batch size:   512 | lm loss: 2.000000E+00 | sop loss: "
      "0.000000E+00 | "
      "loss scale: 4294967296.0 | grad norm: 0.830 | num zeros: 17 | params norm: 123.457 | number of "
      "skipped "
      "iterations:   2 | number of nan iterations:   1 |");
}

TEST_F(LogLines, ShortStepLine) {
  IntervalMetrics interval = example();
  interval.mfu = 0.5129;
  interval.last.memory = MemoryUse{.max_allocated = 65712163226};
  interval.seconds_per_iteration = 0.40820;
  StepLineOptions options = {.train_iters = 50000};
  EXPECT_EQ(short_step_line(interval, options),
            "step 1200/50000 | loss 2.4137 | gnorm 0.83 | lr 3.00e-4 | 408 ms | 1.27M tok/s | 51.3% MFU | "
            "61.2 GiB | "
            "eta 5h32m");
  interval.skipped = 2;
  interval.nan = 1;
  EXPECT_TRUE(short_step_line(interval, options).ends_with("eta 5h32m | skipped 2 | nan 1"));
  EXPECT_LE(short_step_line(interval, options).size(), 140U);
  interval.mfu = 0.0;
  interval.last.memory.reset();
  interval.last.grad_norm.reset();
  interval.last.learning_rate = 0.0;
  EXPECT_EQ(
      short_step_line(interval, options),
      "step 1200/50000 | loss 2.4137 | lr 0.00e0 | 408 ms | 1.27M tok/s | eta 5h32m | skipped 2 | nan 1");
}

TEST_F(LogLines, TimestampRoundsIntoTheNextSecond) {
  EXPECT_EQ(timestamp(1769860799.9999999), "2026-01-31 12:00:00.000000");
  EXPECT_EQ(timestamp(1769860800.75, false), "2026-01-31 12:00:00");
}

TEST_F(LogLines, EvaluationBox) {
  const auto lines =
      evaluation_lines({.iteration = 100, .prefix = "iteration 100", .losses = {{"lm loss", 2.4137}}});
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1],
            " validation loss at iteration 100 | lm loss value: 2.413700E+00 | lm loss PPL: 1.117523E+01 | ");
  EXPECT_EQ(lines[0], std::string(lines[1].size() + 1, '-'));
  EXPECT_EQ(lines[2], lines[0]);
  const auto diverged = evaluation_lines({.prefix = "iteration 1", .losses = {{"lm loss", 30.0}}});
  EXPECT_NE(diverged[1].find("PPL: 4.851652E+08"), std::string::npos) << "exp(20) at most";
  EXPECT_EQ(short_evaluation_line({.iteration = 100, .losses = {{"lm loss", 2.4137}}, .seconds = 1.25}),
            "validation at step 100 | loss 2.4137 | ppl 11.18 | 1.2 s");
}

TEST_F(LogLines, CustomMetricsHaveNoPerplexity) {
  const EvalMetrics evaluation = {
      .prefix = "iteration 1", .losses = {{"lm loss", 0.0}}, .metrics = {{"keywords per sample", 0.5}}};
  EXPECT_EQ(evaluation_lines(evaluation)[1],
            " validation loss at iteration 1 | lm loss value: 0.000000E+00 | lm loss PPL: 1.000000E+00 | "
            "keywords per "
            "sample value: 5.000000E-01 | ");
  EXPECT_EQ(short_evaluation_line(evaluation),
            "validation at step 0 | loss 0.0000 | ppl 1.00 | keywords per sample 0.5000 | 0.0 s");
}

TEST_F(LogLines, ASecondEvaluationSaysSo) {
  const EvalMetrics evaluation = {.iteration = 20, .losses = {{"lm loss", 0.0}}, .repeated = true};
  ASSERT_EQ(evaluation_lines(evaluation).size(), 4U);
  EXPECT_EQ(evaluation_lines(evaluation)[3],
            " (the second evaluation of iteration 20, on the samples that follow those of the first)");
  EXPECT_NE(short_evaluation_line(evaluation).find("| second evaluation, on the next samples"),
            std::string::npos);
}

TEST_F(LogLines, SaveMemoryTimersAndDates) {
  EXPECT_EQ(save_line(100, "runs/a\nb", {.tp_rank = 0, .tp_size = 2, .pp_rank = 1, .pp_size = 4}),
            "  successfully saved checkpoint from iteration     100 to runs/a\\x0ab [ t 1/2, p 2/4 ]");
  EXPECT_EQ(
      memory_line(3, 2,
                  {.allocated = 1048576, .max_allocated = 2097152, .reserved = 3145728, .max_reserved = 1}),
      "[Rank 3] (after 2 iterations) memory (MB) | allocated: 1.00 | max allocated: 2.00 | reserved: 3.00 | "
      "max "
      "reserved: 0.00");
  const TimerMetrics timers = {.iteration = 5, .rows = {{"forward-backward", 10.5, 12.25}}};
  const auto lines = timer_lines(timers, TimingOption::minmax);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0], "(min, max) time across ranks (ms):");
  EXPECT_EQ(lines[1], "    forward-backward ...............................: (10.50, 12.25)");
  EXPECT_EQ(lines[1].find(':'), 4U + 48U);
  EXPECT_EQ(timer_lines(timers, TimingOption::max)[1],
            "    forward-backward ...............................: 12.25");
  const TimerMetrics ranks = {.rows = {{"optimizer", 1.0, 2.5, {1.0, 2.5}}}};
  EXPECT_EQ(timer_lines(ranks, TimingOption::all),
            (std::vector<std::string>{"times across ranks (ms):", "  optimizer:", "     rank  0: 1.00",
                                      "     rank  1: 2.50"}));
  EXPECT_TRUE(timer_lines({}, TimingOption::max).empty());
  EXPECT_EQ(datetime_line("after training is done", 1769860800.0),
            "[after training is done] datetime: 2026-01-31 12:00:00 ");
}

TEST_F(LogLines, ShortNumbers) {
  EXPECT_EQ(short_count(0.0), "0.00");
  EXPECT_EQ(short_count(9.994), "9.99");
  EXPECT_EQ(short_count(9.996), "10.0");
  EXPECT_EQ(short_count(412.4), "412");
  EXPECT_EQ(short_count(999.6), "1.00k");
  EXPECT_EQ(short_count(12345.0), "12.3k");
  EXPECT_EQ(short_count(1.27e6), "1.27M");
  EXPECT_EQ(short_duration(41.2), "41s");
  EXPECT_EQ(short_duration(271.0), "4m31s");
  EXPECT_EQ(short_duration(3 * 86400 + 4 * 3600), "3d04h");
  EXPECT_EQ(short_duration(-1.0), "?");
  EXPECT_EQ(short_duration(kNan), "?");
}

}  // namespace
}  // namespace teratron
