#include "teratron/optim/lr_schedule.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron {
namespace {

using nlohmann::json;

const std::string kFixtures = std::string(TERATRON_SOURCE_DIR) + "/tests/fixtures/schedules/";

json schedule_fixture(const std::string& name) {
  std::ifstream file(kFixtures + name);
  return json::parse(file);
}

LrScheduleOptions options_of(const json& c) {
  LrScheduleOptions o;
  o.init_lr = c["init_lr"];
  o.max_lr = c["max_lr"];
  o.min_lr = c["min_lr"];
  o.warmup_steps = c["lr_warmup_steps"];
  o.decay_steps = c["lr_decay_steps"];
  o.decay_style = lr_decay_style_from_name(c["lr_decay_style"].get<std::string>()).value();
  o.wsd_decay_steps = c.value("wsd_decay_steps", 0.0);
  if (c.contains("lr_wsd_decay_style")) {
    o.wsd_decay_style = wsd_decay_style_from_name(c["lr_wsd_decay_style"].get<std::string>()).value();
  }
  o.start_weight_decay = c["start_wd"];
  o.end_weight_decay = c["end_wd"];
  o.weight_decay_steps = c["wd_incr_steps"];
  o.weight_decay_style = weight_decay_style_from_name(c["wd_incr_style"].get<std::string>()).value();
  return o;
}

std::map<std::string, std::vector<std::vector<std::string>>> read_rows() {
  std::map<std::string, std::vector<std::vector<std::string>>> rows;
  std::ifstream file(kFixtures + "lr_values.csv");
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::vector<std::string> cells;
    std::stringstream stream(line);
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    rows[cells[0]].push_back(cells);
  }
  return rows;
}

LrScheduleOptions plain_cosine() {
  return {.max_lr = 1e-3,
          .min_lr = 1e-5,
          .warmup_steps = 10,
          .decay_steps = 100,
          .decay_style = LrDecayStyle::cosine,
          .weight_decay_steps = 100};
}

TEST(LrSchedule, EqualsMegatronBitwise) {
  const auto rows = read_rows();
  const json cases = schedule_fixture("lr_cases.json");
  ASSERT_EQ(cases.size(), rows.size());
  for (const json& c : cases) {
    SCOPED_TRACE(c["case"].get<std::string>());
    OptimizerParamScheduler scheduler(options_of(c));
    const ParamGroupOverrides second = {.max_lr = c["max_lr"].get<double>() * 2,
                                        .min_lr = c["min_lr"].get<double>() / 2,
                                        .weight_decay_mult = 0.0};
    const auto& expected = rows.at(c["case"]);
    ASSERT_EQ(expected.size(), c["steps"].get<size_t>() + 1);
    for (const auto& row : expected) {
      EXPECT_EQ(scheduler.num_steps(), std::stoll(row[2]));
      EXPECT_EQ(scheduler.lr(), std::stod(row[3])) << "at " << row[2];
      EXPECT_EQ(scheduler.wd(), std::stod(row[4])) << "at " << row[2];
      EXPECT_EQ(scheduler.lr(second), std::stod(row[5])) << "at " << row[2];
      EXPECT_EQ(scheduler.wd(second), std::stod(row[6])) << "at " << row[2];
      if (&row != &expected.back()) scheduler.step(c["increment"]);
    }
    json state = scheduler.state();
    for (const char* more : {"wsd_decay_steps", "lr_wsd_decay_style"}) state.erase(more);
    EXPECT_EQ(state, c["state_dict"]);
  }
}

TEST(LrSchedule, NamesOfStyles) {
  EXPECT_EQ(lr_decay_style_from_name("constant"), LrDecayStyle::constant);
  EXPECT_EQ(lr_decay_style_from_name("inverse-square-root"), LrDecayStyle::inverse_square_root);
  EXPECT_EQ(lr_decay_style_from_name("WSD"), LrDecayStyle::wsd);
  EXPECT_EQ(wsd_decay_style_from_name("linear"), WsdDecayStyle::linear);
  EXPECT_EQ(wsd_decay_style_from_name("minus_sqrt"), WsdDecayStyle::minus_sqrt);
  EXPECT_EQ(weight_decay_style_from_name("cosine"), WeightDecayStyle::cosine);
  EXPECT_FALSE(lr_decay_style_from_name("wsd"));
  EXPECT_FALSE(weight_decay_style_from_name("WSD"));
}

TEST(LrSchedule, ResumedEqualsUnbroken) {
  OptimizerParamScheduler whole(plain_cosine());
  for (int i = 0; i < 37; ++i) whole.step(2);
  OptimizerParamScheduler resumed(plain_cosine());
  resumed.load(json::parse(whole.state().dump()), ScheduleLoadRule::must_match);
  EXPECT_EQ(resumed.num_steps(), 74);
  whole.step(2);
  resumed.step(2);
  EXPECT_EQ(resumed.lr(), whole.lr());
}

TEST(LrSchedule, LoadRules) {
  LrScheduleOptions growing = plain_cosine();
  growing.weight_decay_style = WeightDecayStyle::linear;
  const json saved = OptimizerParamScheduler(growing).state();
  LrScheduleOptions changed = growing;
  changed.max_lr = 2e-3;
  changed.decay_style = LrDecayStyle::linear;
  changed.weight_decay_steps = 50;

  OptimizerParamScheduler strict(changed);
  try {
    strict.load(saved, ScheduleLoadRule::must_match);
    FAIL() << "a changed schedule was taken silently";
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::checkpoint);
    EXPECT_EQ(error.problems().size(), 3U);
    EXPECT_NE(std::string(error.what()).find("--override-opt-param-scheduler"), std::string::npos);
  }
  EXPECT_EQ(strict.options().max_lr, 2e-3) << "a failed load must change nothing";

  OptimizerParamScheduler by_flags(changed);
  by_flags.load(saved, ScheduleLoadRule::keep_flags);
  EXPECT_EQ(by_flags.options().max_lr, 2e-3);
  EXPECT_EQ(by_flags.options().decay_style, LrDecayStyle::linear);

  OptimizerParamScheduler by_checkpoint(changed);
  by_checkpoint.load(saved, ScheduleLoadRule::use_checkpoint);
  EXPECT_EQ(by_checkpoint.options().max_lr, 1e-3);
  EXPECT_EQ(by_checkpoint.options().decay_style, LrDecayStyle::cosine);
  EXPECT_EQ(by_checkpoint.options().weight_decay_steps, 100);
}

// By the formulas, neither a constant rate nor a constant weight decay depends on the length of the training.
TEST(LrSchedule, LengthsOfWhatIsConstantMayChange) {
  LrScheduleOptions shorter = plain_cosine();
  shorter.decay_style = LrDecayStyle::constant;
  const json saved = OptimizerParamScheduler(shorter).state();
  LrScheduleOptions longer = shorter;
  longer.decay_steps = longer.weight_decay_steps = 300;
  OptimizerParamScheduler resumed(longer);
  resumed.load(saved, ScheduleLoadRule::must_match);
  EXPECT_EQ(resumed.options().weight_decay_steps, 300);
  EXPECT_EQ(resumed.state()["lr_decay_steps"], 300);
  longer.warmup_steps = 20;
  EXPECT_THROW(OptimizerParamScheduler(longer).load(saved, ScheduleLoadRule::must_match), UserError);
  longer = plain_cosine();
  longer.weight_decay_steps = 300;
  EXPECT_THROW(OptimizerParamScheduler(longer).load(saved, ScheduleLoadRule::must_match), UserError)
      << "another style";
}

TEST(LrSchedule, LoadsStateWithoutWeightDecay) {
  json saved = OptimizerParamScheduler(plain_cosine()).state();
  for (const char* key : {"start_wd", "end_wd", "wd_incr_style", "wd_incr_steps"}) saved.erase(key);
  OptimizerParamScheduler scheduler(plain_cosine());
  EXPECT_NO_THROW(scheduler.load(saved, ScheduleLoadRule::must_match));
}

TEST(LrSchedule, InvalidStatesAreRejected) {
  const json good = OptimizerParamScheduler(plain_cosine()).state();
  const auto rejected = [&](const json& state) {
    OptimizerParamScheduler scheduler(plain_cosine());
    EXPECT_THROW(scheduler.load(state, ScheduleLoadRule::use_checkpoint), UserError) << state;
  };
  rejected(json::array());
  for (const auto& [key, value] : good.items()) {
    if (key == "start_wd") continue;  // weight decay may be absent
    json state = good;
    state.erase(key);
    rejected(state);
    state[key] = json::array();
    rejected(state);
  }
  json state = good;
  state["lr_decay_style"] = "stairs";
  rejected(state);
  state = good;
  state["num_steps"] = -1;
  rejected(state);
  state = good;
  state["lr_decay_steps"] = 0;
  rejected(state);
}

LrScheduleOptions plain_wsd(double decay, double tail) {
  return {.max_lr = 1e-3,
          .warmup_steps = 10,
          .decay_steps = decay,
          .decay_style = LrDecayStyle::wsd,
          .wsd_decay_steps = tail,
          .weight_decay_steps = 1000};
}

json wsd_state(double decay, double tail, int64_t samples) {
  OptimizerParamScheduler scheduler(plain_wsd(decay, tail));
  scheduler.step(samples);
  return scheduler.state();
}

double rate_after(const json& state, const LrScheduleOptions& flags, ScheduleLoadRule rule) {
  OptimizerParamScheduler scheduler(flags);
  scheduler.load(state, rule);
  return scheduler.lr();
}

TEST(LrSchedule, ResumesIntoAWsdDecayOnlyWhereTheRateIsTheSame) {
  using enum ScheduleLoadRule;
  const json stable = wsd_state(1000, 50, 900);
  EXPECT_EQ(rate_after(stable, plain_wsd(1000, 100), must_match), 1e-3) << "the whole tail is left";
  EXPECT_EQ(rate_after(stable, plain_wsd(1400, 500), keep_flags), 1e-3);
  EXPECT_EQ(rate_after(stable, plain_wsd(1000, 500), use_checkpoint), 1e-3) << "the checkpoint's tail";
  json constant = stable;
  constant["lr_decay_style"] = "constant";
  for (const json& state : {stable, constant}) {
    for (const LrScheduleOptions& flags : {plain_wsd(1000, 500), plain_wsd(1000, 101), plain_wsd(899, 50)}) {
      try {
        rate_after(state, flags, keep_flags);
        ADD_FAILURE() << "the learning rate jumps";
      } catch (const UserError& error) {
        EXPECT_EQ(error.exit_code(), ExitCode::config);
        EXPECT_NE(std::string(error.what()).find("are left of"), std::string::npos) << error.what();
      }
    }
  }
  EXPECT_THROW(rate_after(stable, plain_wsd(1000, 500), must_match), UserError);
  const json falling = wsd_state(1000, 500, 900);
  EXPECT_LT(rate_after(falling, plain_wsd(1000, 500), must_match), 1e-3) << "in the middle of the tail";
  LrScheduleOptions higher = plain_wsd(1000, 500);
  higher.max_lr = 2e-3;
  EXPECT_NO_THROW(rate_after(falling, higher, keep_flags)) << "a chosen rate";
  EXPECT_THROW(rate_after(falling, plain_wsd(1100, 500), keep_flags), UserError);
  json old = falling;
  for (const char* key : {"wsd_decay_steps", "lr_wsd_decay_style"}) old.erase(key);
  EXPECT_EQ(rate_after(old, plain_wsd(1000, 500), must_match),
            rate_after(falling, plain_wsd(1000, 500), must_match));
}

TEST(LrSchedule, WsdDecayStartsAfterTheWarmUp) {
  EXPECT_NO_THROW(OptimizerParamScheduler{plain_wsd(100, 90)});
  EXPECT_THROW(OptimizerParamScheduler{plain_wsd(100, 91)}, UserError);
  LrScheduleOptions fractional = plain_wsd(100, 93);
  fractional.warmup_steps = 0.07 * 100;
  EXPECT_NO_THROW(OptimizerParamScheduler{fractional});
}

TEST(LrSchedule, ReportsAllContradictions) {
  const LrScheduleOptions bad = {.init_lr = 1.0,
                                 .max_lr = 1e-5,
                                 .min_lr = 1e-3,
                                 .warmup_steps = 100,
                                 .decay_steps = 100,
                                 .decay_style = LrDecayStyle::wsd,
                                 .start_weight_decay = 0.1,
                                 .end_weight_decay = 0.01};
  try {
    OptimizerParamScheduler scheduler(bad);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    EXPECT_EQ(error.problems().size(), 6U) << error.what();
  }
  LrScheduleOptions nan = plain_cosine();
  nan.max_lr = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(OptimizerParamScheduler{nan}, UserError);
}

TEST(LrSchedule, LengthsFromIterationsAndSamples) {
  LrScheduleOptions o;
  resolve_lengths(
      {.train_iters = 100, .global_batch_size = 32, .lr_wsd_decay_iters = 10, .lr_warmup_iters = 5}, o);
  EXPECT_EQ(o.decay_steps, 3200);
  EXPECT_EQ(o.weight_decay_steps, 3200);
  EXPECT_EQ(o.wsd_decay_steps, 320);
  EXPECT_EQ(o.warmup_steps, 160);
  resolve_lengths(
      {.train_iters = 120, .global_batch_size = 32, .lr_decay_iters = 100, .lr_warmup_fraction = 0.013}, o);
  EXPECT_EQ(o.warmup_steps, 0.013 * 3200) << "of the decay, not rounded";
  EXPECT_EQ(o.weight_decay_steps, 3840);
  // Steps of a varying size: of the first 10, 4 samples each, then 8.
  const auto samples_of = [](int64_t n) { return n <= 10 ? 4 * n : 40 + 8 * (n - 10); };
  resolve_lengths({.train_iters = 30,
                   .samples_of = samples_of,
                   .lr_decay_iters = 20,
                   .lr_wsd_decay_iters = 15,
                   .lr_warmup_iters = 5},
                  o);
  EXPECT_EQ(o.warmup_steps, 20);
  EXPECT_EQ(o.decay_steps, 120);
  EXPECT_EQ(o.wsd_decay_steps, 100);
  EXPECT_EQ(o.weight_decay_steps, 200);
  resolve_lengths({.train_samples = 5000, .global_batch_size = 32, .lr_warmup_samples = 77}, o);
  EXPECT_EQ(o.decay_steps, 5000);
  EXPECT_EQ(o.warmup_steps, 77);

  EXPECT_THROW(resolve_lengths({}, o), UserError);
  EXPECT_THROW(resolve_lengths({.train_iters = 1, .train_samples = 1}, o), UserError);
  EXPECT_THROW(resolve_lengths({.train_iters = 1, .lr_decay_samples = 1}, o), UserError);
  EXPECT_THROW(resolve_lengths({.train_iters = 1, .lr_wsd_decay_samples = 1}, o), UserError);
  EXPECT_THROW(resolve_lengths({.train_iters = 1, .lr_warmup_samples = 1}, o), UserError);
  EXPECT_THROW(resolve_lengths({.train_samples = 1, .lr_decay_iters = 1}, o), UserError);
  EXPECT_THROW(resolve_lengths({.train_samples = 1, .lr_wsd_decay_iters = 1}, o), UserError);
  EXPECT_THROW(resolve_lengths({.train_samples = 1, .lr_warmup_iters = 1}, o), UserError);
}

}  // namespace
}  // namespace teratron
