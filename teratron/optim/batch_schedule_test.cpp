#include "teratron/optim/batch_schedule.h"

#include <fstream>
#include <limits>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron {
namespace {

using nlohmann::json;

json batch_fixture(const std::string& name) {
  std::ifstream file(std::string(TERATRON_SOURCE_DIR) + "/tests/fixtures/schedules/" + name);
  return json::parse(file);
}

BatchSchedule ramp_of(const json& c) {
  const BatchRamp ramp = {c["rampup_batch_size"][0], c["rampup_batch_size"][1], c["rampup_batch_size"][2]};
  return BatchSchedule::ramp(
      ramp, c["global_batch_size"],
      {c["micro_batch_size"], c["data_parallel_size"], c["decrease_batch_size_if_needed"].get<bool>()});
}

/// Walks the schedule and checks when the size changes and to what.
void expect_trace(const BatchSchedule& schedule, const json& c) {
  int64_t consumed = 0;
  size_t next = 0;
  const json& trace = c["trace_step_consumed_global_running_microbatches"];
  // The last step is listed, unless it could not run.
  const int64_t steps = c["end"][0].get<int64_t>() + (c.contains("inconsistent") ? 0 : 1);
  for (int64_t step = 0; step < steps; ++step) {
    const BatchSize size = schedule.at(consumed);
    ASSERT_TRUE(schedule.runs_at(consumed));
    if (next < trace.size() && trace[next][0] == step) {
      EXPECT_EQ(json({step, consumed, size.global, size.running, size.microbatches}), trace[next]);
      ++next;
    } else {
      EXPECT_EQ(size.global, trace[next - 1][2].get<int64_t>()) << "step " << step;
    }
    consumed += size.running;
  }
  EXPECT_EQ(consumed, c["end"][1].get<int64_t>());
  EXPECT_EQ(next, trace.size());
}

TEST(BatchSchedule, RampEqualsMegatron) {
  int errors = 0;
  for (const json& c : batch_fixture("rampup_batch_size.json")) {
    SCOPED_TRACE(c["rampup_batch_size"].dump());
    if (c.contains("error")) {
      EXPECT_THROW(ramp_of(c), UserError);
      ++errors;
      continue;
    }
    const BatchSchedule schedule = ramp_of(c);
    expect_trace(schedule, c);
    for (const json& row : c["at_consumed_global_running_microbatches"]) {
      EXPECT_EQ(schedule.at(row[0]), (BatchSize{row[1], row[2], row[3]})) << row;
    }
    if (c.contains("inconsistent")) {
      EXPECT_FALSE(schedule.runs_at(c["inconsistent"]["consumed"]));
      EXPECT_THROW(schedule.require_divisible(), UserError);
    } else {
      EXPECT_NO_THROW(schedule.require_divisible());
    }
  }
  EXPECT_EQ(errors, 3);
}

TEST(BatchSchedule, StepsEqualMegatron) {
  int errors = 0;
  for (const json& c : batch_fixture("step_batch_size.json")) {
    SCOPED_TRACE(c["schedule"].dump());
    const auto text = c["schedule"].get<std::string>();
    const auto seq_length =
        c["seq_length"].is_null() ? std::nullopt : std::optional<int64_t>(c["seq_length"].get<int64_t>());
    if (c.contains("error")) {
      EXPECT_THROW(parse_step_batch_size_schedule(text, seq_length), UserError);
      ++errors;
      continue;
    }
    const auto steps = parse_step_batch_size_schedule(text, seq_length);
    json parsed = json::array();
    for (const BatchStep& step : steps) parsed.push_back({step.samples, step.global_batch_size});
    EXPECT_EQ(parsed, c["parsed_samples_batch"]);
    const auto schedule = BatchSchedule::steps(steps, {c["micro_batch_size"], c["data_parallel_size"]});
    for (const json& row : c["at_consumed_batch_microbatches"]) {
      EXPECT_EQ(schedule.at(row[0]), (BatchSize{row[1], row[1], row[2]})) << row;
    }
  }
  EXPECT_EQ(errors, 3);
}

TEST(BatchSchedule, StepTextForms) {
  const std::vector<BatchStep> expected = {{0, 8}, {1500, 2000}};
  EXPECT_EQ(parse_step_batch_size_schedule(" 1.5k:2K ,, 0:8 ", std::nullopt), expected);
  for (const char* bad : {"", " , ", "0", "0:", ":8", "0:8:9", "0:0", "0:-8", "0:nan", "0:inf",
                          "0:8 9e18T:16", "0:8 5:x", "0:K", "-0.1:8"}) {
    EXPECT_THROW(parse_step_batch_size_schedule(bad, std::nullopt), UserError) << bad;
  }
  EXPECT_THROW(parse_step_batch_size_schedule("0:8 50:16", 100), UserError)
      << "two thresholds fall on sample 0";
}

TEST(BatchSchedule, ConstantAndRoundedDown) {
  EXPECT_EQ(BatchSchedule::constant(64, {4, 2}).at(12345), (BatchSize{64, 64, 8}));
  EXPECT_EQ(BatchSchedule::constant(20, {3, 2, true}).at(0), (BatchSize{20, 18, 3}));
  EXPECT_THROW(BatchSchedule::constant(20, {3, 2}), UserError);
  EXPECT_THROW(BatchSchedule::constant(5, {3, 2, true}), UserError) << "not one micro-batch";
  EXPECT_THROW(BatchSchedule::constant(0, {1, 1}), UserError);
  EXPECT_THROW(BatchSchedule::constant(8, {0, 1}), UserError);
  EXPECT_THROW(BatchSchedule::constant(8, {int64_t{1} << 40, int64_t{1} << 40}), UserError);
}

TEST(BatchSchedule, StepsNeedDivisibleSizesOnlyWhenReached) {
  const auto schedule = BatchSchedule::steps({{0, 6}, {60, 16}}, {4, 4});
  EXPECT_THROW(schedule.require_divisible(), UserError);
  EXPECT_NO_THROW(schedule.require_divisible(60));
  EXPECT_THROW(BatchSchedule::steps({{0, 8}}, {1, 1, true}), UserError);
  EXPECT_THROW(BatchSchedule::steps({}, {1, 1}), UserError);
  EXPECT_EQ(schedule.last(), (BatchSize{16, 16, 1}));
}

TEST(BatchSchedule, ConsumedSamplesMatchAWalkStepByStep) {
  const BatchSplit split{2, 1};
  for (const BatchSchedule& schedule :
       {BatchSchedule::constant(6, split),
        BatchSchedule::ramp({.start = 2, .increment = 2, .samples = 20}, 8, split),
        BatchSchedule::steps({{0, 4}, {10, 8}, {11, 2}, {60, 16}}, split)}) {
    int64_t consumed = 0;
    for (int64_t iterations = 0; iterations < 30; ++iterations) {
      EXPECT_EQ(schedule.consumed_after(iterations), consumed) << iterations;
      EXPECT_EQ(schedule.consumed_after(30 - iterations, consumed), schedule.consumed_after(30))
          << iterations;
      consumed += schedule.at(consumed).running;
    }
  }
  EXPECT_EQ(BatchSchedule::constant(6, split).consumed_after(int64_t{1} << 62),
            std::numeric_limits<int64_t>::max());
}

TEST(BatchSchedule, IterationsMatchAWalkStepByStep) {
  const auto walk = [](const BatchSchedule& schedule, int64_t samples) {
    int64_t iterations = 0;
    for (int64_t consumed = 0; consumed + schedule.at(consumed).running <= samples; ++iterations) {
      consumed += schedule.at(consumed).running;
    }
    return iterations;
  };
  const auto constant = BatchSchedule::constant(32, {4, 2});
  const auto ramp = BatchSchedule::ramp({16, 8, 1000}, 64, {4, 2});
  const auto steps = BatchSchedule::steps({{0, 8}, {100, 24}, {101, 32}, {1000, 8}}, {4, 2});
  for (const int64_t samples : {0, 7, 8, 99, 100, 101, 512, 1000, 1001, 5003}) {
    EXPECT_EQ(constant.iterations_for(samples), samples / 32);
    EXPECT_EQ(ramp.iterations_for(samples), walk(ramp, samples)) << samples;
    EXPECT_EQ(steps.iterations_for(samples), walk(steps, samples)) << samples;
    int64_t done = 0;
    for (int64_t consumed = 0; consumed <= samples; consumed += ramp.at(consumed).running, ++done)
      EXPECT_EQ(done + ramp.iterations_for(samples, consumed), ramp.iterations_for(samples)) << consumed;
  }
}

TEST(BatchSchedule, CountsTheStepsOfAnyNumberOfSamplesAtOnce) {
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(BatchSchedule::constant(32, {4, 2}).iterations_for(most), most / 32);
  EXPECT_EQ(BatchSchedule::constant(32, {4, 2}).iterations_for(most, most - 63), 1);
  const auto ramp = BatchSchedule::ramp({16, 16, 3'000'000'000'000'000}, 64, {4, 2});
  EXPECT_EQ(ramp.iterations_for(3'000'000'000'000'000),
            62'500'000'000'000 + 31'250'000'000'000 + 20'833'333'333'333);
}

}  // namespace
}  // namespace teratron
