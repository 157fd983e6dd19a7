#include "teratron/optim/loss_scaler.h"

#include <fstream>
#include <limits>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron {
namespace {

using nlohmann::json;

TEST(LossScaler, StateTraceEqualsMegatron) {
  std::ifstream file(std::string(TERATRON_SOURCE_DIR) + "/tests/fixtures/schedules/grad_scaler.json");
  const json cases = json::parse(file);
  ASSERT_FALSE(cases.empty());
  for (const json& c : cases) {
    auto scaler = LossScaler::dynamic({.initial_scale = c["initial_scale"],
                                       .min_scale = c["min_scale"],
                                       .growth_factor = c["growth_factor"],
                                       .backoff_factor = c["backoff_factor"],
                                       .growth_interval = c["growth_interval"],
                                       .hysteresis = c["hysteresis"]});
    const auto found_inf = c["found_inf"].get<std::string>();
    for (const json& row : c["trace_step_scale_growth_hysteresis"]) {
      scaler.update(found_inf.at(row[0].get<size_t>()) == '1');
      const json expected = {{"scale", row[1]}, {"growth_tracker", row[2]}, {"hysteresis_tracker", row[3]}};
      ASSERT_EQ(scaler.state(), expected) << "step " << row[0];
    }
  }
}

TEST(LossScaler, ResumesInTheMiddle) {
  const LossScalerOptions options = {.growth_interval = 3};
  auto whole = LossScaler::dynamic(options);
  for (const bool inf : {true, true, false, true, false}) whole.update(inf);
  auto resumed = LossScaler::dynamic(options);
  resumed.load(json::parse(whole.state().dump()));
  for (const bool inf : {false, false, true, true, false}) {
    whole.update(inf);
    resumed.update(inf);
    EXPECT_EQ(resumed.state(), whole.state());
  }
}

TEST(LossScaler, GrowsAfterResumingWithASmallerWindow) {
  auto scaler = LossScaler::dynamic({.initial_scale = 1024.0F, .growth_interval = 10});
  for (int i = 0; i < 7; ++i) scaler.update(false);
  auto resumed = LossScaler::dynamic({.initial_scale = 1024.0F, .growth_interval = 3});
  resumed.load(scaler.state());
  resumed.update(false);
  EXPECT_EQ(resumed.scale(), 2048.0F);
  for (int i = 0; i < 3; ++i) resumed.update(false);
  EXPECT_EQ(resumed.scale(), 4096.0F);
}

TEST(LossScaler, ConstantNeverChanges) {
  auto scaler = LossScaler::constant(128.0F);
  EXPECT_FALSE(scaler.is_dynamic());
  for (int i = 0; i < 5; ++i) scaler.update(i % 2 == 0);
  EXPECT_EQ(scaler.scale(), 128.0F);
  EXPECT_TRUE(scaler.state().empty());
  scaler.load(json::object());
  EXPECT_EQ(scaler.scale(), 128.0F);
}

TEST(LossScaler, GrowthStopsBeforeInfinity) {
  auto scaler = LossScaler::dynamic({.initial_scale = 0x1p127F, .growth_interval = 1});
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 0x1p127F);
}

TEST(LossScaler, BadOptionsAndStatesAreRejected) {
  EXPECT_THROW(LossScaler::constant(0.0F), UserError);
  EXPECT_THROW(LossScaler::constant(std::numeric_limits<float>::infinity()), UserError);
  EXPECT_THROW(LossScaler::dynamic({.initial_scale = 0.5F}), UserError);
  EXPECT_THROW(LossScaler::dynamic({.min_scale = 0.0F}), UserError);
  EXPECT_THROW(LossScaler::dynamic({.growth_factor = 1.0F}), UserError);
  EXPECT_THROW(LossScaler::dynamic({.backoff_factor = 1.0F}), UserError);
  EXPECT_THROW(LossScaler::dynamic({.growth_interval = 0}), UserError);
  EXPECT_THROW(LossScaler::dynamic({.hysteresis = 0}), UserError);
  auto scaler = LossScaler::dynamic({});
  for (const char* key : {"scale", "growth_tracker", "hysteresis_tracker"}) {
    json state = scaler.state();
    state[key] = "many";
    EXPECT_THROW(scaler.load(state), UserError) << key;
    state.erase(key);
    EXPECT_THROW(scaler.load(state), UserError) << key;
  }
  json state = scaler.state();
  state["scale"] = 1e300;
  EXPECT_THROW(scaler.load(state), UserError);
}

}  // namespace
}  // namespace teratron
