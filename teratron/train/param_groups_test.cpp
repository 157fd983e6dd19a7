// Chosen parameter groups: AdamW with them in fp64, every layout against one rank, and resumed runs.
#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/settings/param_group_settings.h"
#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"
#include "teratron/testing/train_run.h"

namespace teratron {
namespace {

constexpr double rate = 1e-2, decay = 0.3;
constexpr int64_t steps = 3;

// What the flags and the program of the tests below choose, written out.
ParamGroup expected_group(const std::string& name, bool vector) {
  ParamGroup group{.lr_mult = 1.0, .weight_decay_mult = vector ? 0.0 : 1.0};
  if (name.find("layers.1.") != name.npos) group.lr_mult = 0.5;              // the program
  if (name.find("linear_proj") != name.npos) group.weight_decay_mult = 2.0;  // the program
  if (name.ends_with(".mlp.linear_fc1.weight")) group.lr_mult = 0.0;
  if (name.find("layernorm") != name.npos) group.lr_mult = 4.0;
  return group;
}

ParamGroupChange program_group(const std::string& name, const std::vector<int64_t>& shape) {
  ParamGroupChange change;
  if (name.find("layers.1.") != name.npos) change.lr_mult = 0.5;
  if (name.find("linear_proj") != name.npos) change.weight_decay_mult = 2.0;
  // Whole tensors, whatever the layout.
  if (name.ends_with("linear_fc2.weight")) {
    EXPECT_EQ(shape, (std::vector<int64_t>{16, 24}));
  }
  return change;
}

const std::vector<ParamGroupRule> rules = {
    {.patterns = {"*.mlp.linear_fc1.weight"}, .change = {.lr_mult = 0.0}, .where = "--lr-mult"},
    {.patterns = {"*layernorm*"}, .change = {.lr_mult = 4.0}, .where = "--lr-mult"}};

GPTConfig test_config() {
  GPTConfig config = gpt2_config();
  config.layers = 4;
  return config;
}

EngineOptions options_with_groups(const Layout& layout) {
  EngineOptions options = engine_options(test_config(), layout, at::kDouble);
  options.optimizer.clip_grad = 0.0;
  options.param_group = program_group;
  options.param_group_rules = rules;
  return options;
}

std::map<std::string, at::Tensor> weights_after(
    const Layout& layout, int64_t count, std::vector<std::map<std::string, at::Tensor>>* grads = nullptr) {
  GlobalTensors global;
  run_layout(layout, [&](const Mesh& mesh) {
    TrainEngine engine(options_with_groups(layout), mesh);
    for (int64_t step = 0; step < count; ++step) {
      train_step(engine, layout, {}, step, {.lr = rate, .weight_decay = decay}).wait();
      if (!grads) continue;
      GlobalTensors all;
      for (const StateTensor& part : gradients(engine)) all.add(part);
      grads->push_back({});
      for (const auto& [name, tensor] : all.tensors()) grads->back()[name] = tensor.clone();
    }
    for (const StateTensor& part : weights(engine)) global.add(part);
  });
  return global.tensors();
}

// Loshchilov, Hutter 2019, with each parameter's factors.
TEST(ChosenParamGroups, AreThoseOfAdamW) {
  std::vector<std::map<std::string, at::Tensor>> grads;
  const auto before = weights_after({}, 0), after = weights_after({}, steps, &grads);
  for (const auto& [name, first] : before) {
    const ParamGroup group = expected_group(name, first.dim() == 1);
    at::Tensor w = first.clone(), m = at::zeros_like(w), v = at::zeros_like(w);
    for (int64_t step = 1; step <= steps; ++step) {
      const at::Tensor& g = grads[static_cast<size_t>(step - 1)].at(name);
      const double lr = rate * group.lr_mult, t = static_cast<double>(step);
      m = 0.9 * m + 0.1 * g;
      v = 0.999 * v + 0.001 * g * g;
      w = w * (1.0 - lr * decay * group.weight_decay_mult) -
          lr * (m / (1.0 - std::pow(0.9, t))) / ((v / (1.0 - std::pow(0.999, t))).sqrt() + 1e-8);
    }
    EXPECT_LT(relative_error(after.at(name), w), 1e-12) << name;
    EXPECT_EQ(at::equal(after.at(name), first), group.lr_mult == 0.0) << name;
  }
}

TEST(ChosenParamGroups, AreTheSameInEveryLayout) {
  const auto expected = weights_after({}, steps);
  for (const Layout& layout :
       {Layout{.tp = 2, .sequence_parallel = true}, Layout{.dp = 2, .bucket_size = 300, .sharded = true},
        Layout{.pp = 2, .microbatches = 2}, every_axis}) {
    SCOPED_TRACE(to_string(layout));
    const auto actual = weights_after(layout, steps);
    for (const auto& [name, tensor] : expected)
      EXPECT_LT(relative_error(actual.at(name), tensor), 1e-8) << name;
  }
}

// The name is on the other stage, or on none.
TEST(ChosenParamGroups, MustMatchSomeParameter) {
  const Layout layout{.pp = 2};
  run_layout(layout, [&](const Mesh& mesh) {
    EngineOptions options = options_with_groups(layout);
    options.param_group_rules = {
        {.patterns = {"decoder.layers.3.*"}, .change = {.lr_mult = 0.1}, .where = "--lr-mult"}};
    EXPECT_NO_THROW(TrainEngine(options, mesh));
    options.param_group_rules[0].patterns = {"decoder.layers.4.*"};
    try {
      TrainEngine(options, mesh);
      ADD_FAILURE() << "there are four layers";
    } catch (const UserError& error) {
      EXPECT_EQ(error.problems().at(0).what, "no trained parameter is named decoder.layers.4.*");
      EXPECT_EQ(error.problems().at(0).where, "--lr-mult");
    }
    options.param_group_rules.clear();
    options.param_group = [](const std::string&, const std::vector<int64_t>&) {
      return ParamGroupChange{.lr_mult = -1.0};
    };
    EXPECT_THROW(TrainEngine(options, mesh), UserError);
  });
}

TEST(ChosenParamGroups, FollowFromTheFlags) {
  Arguments args;
  args.no_wd_decay_cond = {"*norm*"};
  args.scale_lr_cond = {"a*", "b*"};
  args.lr_mult = {"0.5", "x=y.*=2"};
  args.head_lr_mult = 10.0;
  const std::vector<ParamGroupRule> all = param_group_rules(args, {"head*"});
  const auto group = [&](const std::string& name, ParamGroup group) {
    for (const ParamGroupRule& rule : all) {
      if (!matches(rule, name)) continue;
      group.lr_mult = rule.change.lr_mult.value_or(group.lr_mult);
      group.weight_decay_mult = rule.change.weight_decay_mult.value_or(group.weight_decay_mult);
    }
    return group;
  };
  EXPECT_EQ(group("c.bias", ParamGroup::no_weight_decay), ParamGroup())
      << "the names take the place of biases";
  EXPECT_EQ(group("c.norm.weight", {}), ParamGroup::no_weight_decay);
  EXPECT_EQ(group("b.weight", {}).lr_mult, 0.5);
  EXPECT_EQ(group("x=y.weight", {}).lr_mult, 2.0);
  EXPECT_EQ(group("head.weight", {}).lr_mult, 10.0);
  args = {};
  args.no_weight_decay_cond_type = "apply_wd_to_qk_layernorm";
  const std::vector<ParamGroupRule> norms = param_group_rules(args, {});
  ASSERT_EQ(norms.size(), 1U);
  EXPECT_TRUE(matches(norms[0], "decoder.layers.0.self_attention.q_layernorm.weight"));
  EXPECT_FALSE(matches(norms[0], "decoder.layers.0.input_layernorm.weight"));
}

using ParamGroupRuns = SmallRun;

// As learning rates: another choice is refused, or taken from the flags or the checkpoint.
TEST_F(ParamGroupRuns, GoOnWithTheGroupsOfTheCheckpoint) {
  const std::vector<std::string> groups = {"--lr-mult", "*.mlp.*=0.1", "--no-wd-decay-cond", "*.bias"};
  const auto with = [&](const std::string& name, std::vector<std::string> more) {
    return flags(name, std::move(more));
  };
  std::vector<std::string> half = groups;
  half.insert(half.end(), {"--exit-interval", "10"});
  for (const char* name : {"whole", "plain", "kept", "taken"}) {
    const bool whole = std::string(name) == "whole";
    EXPECT_EQ(train(with(name, whole ? groups : half), 2), ExitCode::ok);
  }
  EXPECT_EQ(train(with("plain", groups), 2), ExitCode::ok);
  EXPECT_EQ(tensors("plain", 20), tensors("whole", 20)) << "resumed bitwise";
  const std::string refused = failure_of(with("kept", {}), 1, {});
  EXPECT_NE(refused.find(
                "parameter groups are *: weight decay x 1, *.bias: weight decay x 0, *.mlp.*: learning rate "
                "x 0.1 in the checkpoint but none by the flags"),
            std::string::npos)
      << refused;
  EXPECT_EQ(train(with("taken", {"--use-checkpoint-opt-param-scheduler"}), 2), ExitCode::ok);
  EXPECT_EQ(tensors("taken", 20), tensors("whole", 20));
  EXPECT_EQ(train(with("kept", {"--override-opt-param-scheduler"}), 2), ExitCode::ok);
  EXPECT_NE(tensors("kept", 20), tensors("whole", 20));
}

// A program's function, with its effect on the run.
TEST_F(ParamGroupRuns, OfAProgramFreezeAParameter) {
  const Registry registry{.param_group = [](const std::string& name, const std::vector<int64_t>&) {
    return name.ends_with("linear_fc2.weight") ? ParamGroupChange{.lr_mult = 0.0} : ParamGroupChange{};
  }};
  EXPECT_EQ(train(flags("run"), 2, registry), ExitCode::ok);
  const auto first = tensors("run", 10), last = tensors("run", 20);
  int64_t frozen = 0;
  for (const auto& [name, bytes] : first) {
    if (name.find("optimizer.") != name.npos) continue;
    const bool stays = name.ends_with("linear_fc2.weight");
    EXPECT_EQ(last.at(name) == bytes, stays) << name;
    frozen += stays ? 1 : 0;
  }
  EXPECT_EQ(frozen, 2);
  const std::string refused =
      failure_of(flags("run", {"--train-iters", "30", "--override-opt-param-scheduler"}), 1, {});
  EXPECT_EQ(refused, "") << "the flag takes what this program chooses: nothing";
}

}  // namespace
}  // namespace teratron
