#include "teratron/optim/param_group_rules.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron {
namespace {

TEST(ParamGroupRules, MatchNamesAsShellsDo) {
  const auto match = [](const std::string& pattern, const std::string& name) {
    return matches({.patterns = {pattern}, .change = {}}, name);
  };
  EXPECT_TRUE(match("*", ""));
  EXPECT_TRUE(match("a.b", "a.b"));
  EXPECT_FALSE(match("a.b", "a.bc"));
  EXPECT_FALSE(match("a.b", "xa.b"));
  EXPECT_TRUE(match("*.bias", "layers.0.mlp.linear_fc1.bias"));
  EXPECT_FALSE(match("*.bias", "layers.0.mlp.linear_fc1.bias.x"));
  EXPECT_TRUE(match("layers.?.*fc?.weight", "layers.3.mlp.linear_fc2.weight"));
  EXPECT_FALSE(match("layers.?.*fc?.weight", "layers.13.mlp.linear_fc2.weight"));
  EXPECT_TRUE(match("*ab*ab", "xabyabab")) << "goes back to the star";
  EXPECT_FALSE(match("*ab*ab*ab", "xabyab"));
  EXPECT_TRUE(matches({.patterns = {"x", "*y"}, .change = {}}, "zy"));
}

const ParamGroupRule slow{.patterns = {"*.mlp.*"}, .change = {.lr_mult = 0.1}};
const ParamGroupRule decays{.patterns = {"*.bias"}, .change = {.weight_decay_mult = 1.0}};

ParamGroupChoices loaded(ParamGroupChoices mine, const ParamGroupChoices& saved, ScheduleLoadRule rule) {
  mine.load(nlohmann::json::parse(saved.state().dump()), rule);
  return mine;
}

TEST(ParamGroupRules, GoOnAsTheCheckpointsOrTheFlags) {
  using enum ScheduleLoadRule;
  const ParamGroupChoices one{.rules = {slow}}, two{.rules = {slow, decays}}, none{};
  for (const ScheduleLoadRule rule : {must_match, keep_flags, use_checkpoint})
    EXPECT_EQ(loaded(two, two, rule).state(), two.state());
  EXPECT_EQ(loaded(one, two, keep_flags).state(), one.state());
  EXPECT_EQ(loaded(one, two, use_checkpoint).state(), two.state());
  EXPECT_EQ(loaded(none, two, use_checkpoint).state(), two.state());
  try {
    loaded(one, two, must_match);
    FAIL() << "the weight decay of biases is another";
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::checkpoint);
    EXPECT_EQ(
        error.problems().at(0).what,
        "parameter groups are *.mlp.*: learning rate x 0.1, *.bias: weight decay x 1 in the checkpoint but "
        "*.mlp.*: learning rate x 0.1 by the flags");
  }
  // An older checkpoint has none.
  ParamGroupChoices mine = one;
  EXPECT_THROW(mine.load(nlohmann::json(), must_match), UserError);
  mine.load(nlohmann::json(), use_checkpoint);
  EXPECT_TRUE(mine.empty());
}

TEST(ParamGroupRules, OfAnotherProgramAreRefused) {
  using enum ScheduleLoadRule;
  const ParamGroupChoices one{.program = "1"}, other{.program = "2"};
  EXPECT_THROW(loaded(one, other, must_match), UserError);
  EXPECT_THROW(loaded(one, other, use_checkpoint), UserError);
  EXPECT_EQ(loaded(one, other, keep_flags).program, "1");
}

TEST(ParamGroupRules, InDamagedCheckpointsAreAnError) {
  for (const char* text :
       {R"({"rules": [3]})", R"({"rules": [{"patterns": "x"}]})", R"({"rules": [{"patterns": [1]}]})",
        R"({"rules": [{"patterns": ["x"], "lr_mult": "y"}]})", R"({"rules": [], "program": 3})"}) {
    ParamGroupChoices choices;
    EXPECT_THROW(choices.load(nlohmann::json::parse(text), ScheduleLoadRule::use_checkpoint), UserError)
        << text;
  }
}

}  // namespace
}  // namespace teratron
