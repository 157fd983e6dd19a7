// Steps of the optimizer against the formulas of torch.optim.SGD and torch.optim.AdamW, in double precision,
// and rules of a program.
#include "teratron/optim/optimizer.h"

#include <cmath>
#include <map>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "teratron/optim/matrix_rule.h"
#include "teratron/optim/rules/sgd.h"

namespace teratron {
namespace {

constexpr double lr = 0.05;
constexpr double decoupled_lr = 0.2;
constexpr double weight_decay = 0.1;

// One parameter per group.
struct Model {
  explicit Model(const OptimizerRules& rules = {{adam_rule()}}, const OptimizerOptions& options = {})
      : parameters({.dtype = at::kDouble, .seed = 3}) {
    const Scope scope(parameters);
    add(scope, "embedding.weight", ParamGroup::decoupled_lr);
    add(scope, "decoder.weight", ParamGroup::standard);
    add(scope, "output_layer.weight", ParamGroup::decoupled_lr);
    add(scope, "decoder.bias", ParamGroup::no_weight_decay);
    buffers = std::make_unique<ParamAndGradBuffers>(parameters, mesh, ParamAndGradBuffer::Options{},
                                                    std::vector<int64_t>{}, rules);
    optimizer = std::make_unique<Optimizer>(*buffers, mesh, options);
  }
  static void add(const Scope& scope, const char* name, ParamGroup group) {
    scope.parameter(name,
                    {.shard = {.global_shape = {7, 11}}, .init = Init::normal(1.0), .param_group = group});
  }

  Mesh mesh;
  ParameterSet parameters;
  std::unique_ptr<ParamAndGradBuffers> buffers;
  std::unique_ptr<Optimizer> optimizer;
};

at::Tensor gradient_of(int64_t step, int64_t parameter) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(17 * step + parameter));
  return at::randn({7, 11}, generator, at::TensorOptions().dtype(at::kDouble));
}

// A parameter of the reference.
struct Reference {
  at::Tensor value, first, second;
  double rate, decay;
};

std::vector<Reference> references(const Model& model, bool has_decoupled_lr) {
  std::vector<Reference> all;
  for (const Parameter& parameter : model.parameters.all()) {
    const ParamGroup& group = parameter.options.param_group;
    all.push_back({.value = parameter.tensor.detach().clone(),
                   .first = at::zeros({7, 11}, at::kDouble),
                   .second = at::zeros({7, 11}, at::kDouble),
                   .rate = group == ParamGroup::decoupled_lr && has_decoupled_lr ? decoupled_lr : lr,
                   .decay = group == ParamGroup::no_weight_decay ? 0.0 : weight_decay});
  }
  return all;
}

void sgd(Reference& r, const at::Tensor& gradient, double momentum) {
  r.first = momentum * r.first + gradient + r.decay * r.value;
  r.value = r.value - r.rate * r.first;
}

void adamw(Reference& r, const at::Tensor& gradient, int64_t step) {
  r.value = r.value * (1 - r.rate * r.decay);
  r.first = 0.9 * r.first + 0.1 * gradient;
  r.second = 0.999 * r.second + 0.001 * gradient * gradient;
  const double t = static_cast<double>(step);
  const at::Tensor corrected = r.second.sqrt() / std::sqrt(1 - std::pow(0.999, t)) + 1e-8;
  r.value = r.value - r.rate / (1 - std::pow(0.9, t)) * r.first / corrected;
}

struct Case {
  std::optional<double> momentum;  // of SGD; null: Adam
  std::optional<double> decoupled;
  OptimizerRules rules() const { return {{momentum ? sgd_rule(*momentum) : adam_rule()}}; }
};

class OptimizerStep : public testing::TestWithParam<Case> {};

TEST_P(OptimizerStep, FollowsTheFormula) {
  const auto& [momentum, decoupled] = GetParam();
  Model model(GetParam().rules(), {.clip_grad = 0.0});
  std::vector<Reference> expected = references(model, decoupled.has_value());
  for (int64_t step = 1; step <= 3; ++step) {
    model.buffers->zero_grad();
    model.buffers->set_last_microbatch();
    int64_t i = 0;
    for (Parameter& parameter : model.parameters.all()) {
      const at::Tensor gradient = gradient_of(step, i);
      register_use(parameter);
      accumulate_grad(parameter, gradient);
      Reference& reference = expected[static_cast<size_t>(i++)];
      momentum ? sgd(reference, gradient, *momentum) : adamw(reference, gradient, step);
    }
    model.buffers->finish_grad_sync();
    model.optimizer->step({.lr = lr, .weight_decay = weight_decay, .decoupled_lr = decoupled});
  }
  size_t i = 0;
  for (const Parameter& parameter : model.parameters.all()) {
    const at::Tensor& reference = expected[i++].value;
    EXPECT_TRUE(at::allclose(parameter.tensor, reference, 1e-12, 1e-12)) << parameter.name;
  }
}

// The buffer is not zeroed: the first gradient of a step overwrites it.
TEST(Gradients, OverwriteTheLastStep) {
  Model model;
  ParamAndGradBuffers& buffers = *model.buffers;
  Parameter &once = model.parameters.all()[0], &twice = model.parameters.all()[1],
            &never = model.parameters.all()[2], &product = model.parameters.all()[3];
  const at::Tensor dy = at::randn({5, 7}, at::kDouble), x = at::randn({5, 11}, at::kDouble);
  for (const bool later : {false, true}) {
    buffers.zero_grad();
    for (Parameter& parameter : model.parameters.all()) parameter.main_grad.fill_(std::nan(""));
    if (later) buffers.set_last_microbatch();
    for (int64_t use = 0; use < 2; ++use) {
      for (Parameter* parameter : {&twice, &product}) register_use(*parameter);
      accumulate_grad(twice, gradient_of(1, use));
      accumulate_weight_grad(product, dy, x);
    }
    register_use(once);
    accumulate_grad(once, gradient_of(2, 0));
    buffers.finish_grad_sync();
    EXPECT_TRUE(at::equal(once.main_grad, gradient_of(2, 0)));
    EXPECT_TRUE(at::equal(twice.main_grad, gradient_of(1, 0) + gradient_of(1, 1)));
    EXPECT_TRUE(at::allclose(product.main_grad, 2 * at::matmul(dy.t(), x)));
    EXPECT_TRUE(at::equal(never.main_grad, at::zeros({7, 11}, at::kDouble)));
  }
}

// A kernel may write or accumulate into main_grad directly.
TEST(Gradients, AreAccumulatedInPlace) {
  Model model;
  Parameter& parameter = model.parameters.all()[0];
  model.buffers->zero_grad();
  parameter.main_grad.fill_(std::nan(""));
  for (int64_t use = 0; use < 2; ++use) {
    register_use(parameter);
    const auto [out, adds] = grad_sink(parameter);
    EXPECT_TRUE(out.is_same(parameter.main_grad));
    EXPECT_EQ(adds, use > 0);
    adds ? out.add_(gradient_of(1, use)) : out.copy_(gradient_of(1, use));
    accumulate_grad(parameter, out);
  }
  EXPECT_TRUE(at::equal(parameter.main_grad, gradient_of(1, 0) + gradient_of(1, 1)));
}

TEST(GradientsDeathTest, MustNotAliasMainGrad) {
  Model model;
  Parameter& parameter = model.parameters.all()[0];
  model.buffers->zero_grad();
  register_use(parameter);
  EXPECT_DEATH(accumulate_grad(parameter, parameter.main_grad.view({-1})), "aliases main_grad");
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerStep,
                         testing::Values(Case{0.9, {}}, Case{0.0, {}}, Case{0.9, decoupled_lr}, Case{{}, {}},
                                         Case{{}, decoupled_lr}));

TEST(OptimizerState, DependsOnTheRule) {
  const auto kinds = [](const OptimizerRules& rules) {
    std::map<std::string, int> count;
    const Model model(rules);
    for (const StateTensor& state : model.optimizer->state()) {
      ++count[state.name.substr(0, state.name.find('.', sizeof("optimizer.") - 1))];
    }
    EXPECT_EQ(model.optimizer->has_state(), !count.empty());
    return count;
  };
  using Count = std::map<std::string, int>;
  EXPECT_EQ(kinds({{adam_rule()}}), (Count{{"optimizer.exp_avg", 4}, {"optimizer.exp_avg_sq", 4}}));
  EXPECT_EQ(kinds({{sgd_rule(0.9)}}), (Count{{"optimizer.momentum_buffer", 4}}));
  EXPECT_EQ(kinds({{sgd_rule(0.0)}}), Count{});
  const auto decayed = [](const Parameter& p) { return p.options.param_group.weight_decay_mult != 0.0; };
  EXPECT_EQ(kinds({{sgd_rule(0.9), decayed}, {adam_rule()}}),
            (Count{{"optimizer.momentum_buffer", 3}, {"optimizer.exp_avg", 1}, {"optimizer.exp_avg_sq", 1}}));
}

// Five groups with different factors.
TEST(ParamGroups, AreAList) {
  ParameterSet parameters({.dtype = at::kDouble, .seed = 3});
  const Scope scope(parameters);
  for (int64_t i = 0; i < 5; ++i) {
    const auto factor = static_cast<double>(i);
    scope.parameter(fmt::format("p{}", i),
                    {.shard = {.global_shape = {7}},
                     .init = Init::ones(),
                     .param_group = {.lr_mult = 1 + factor, .weight_decay_mult = factor}});
  }
  ParamAndGradBuffers buffers(parameters, Mesh(), {}, {}, {{sgd_rule(0.0)}});
  Optimizer optimizer(buffers, Mesh(), {.clip_grad = 0.0});
  double value[] = {1, 1, 1, 1, 1};
  for (const double rate : {lr, lr, 2 * lr}) {
    buffers.zero_grad();
    for (Parameter& parameter : parameters.all()) {
      register_use(parameter);
      accumulate_grad(parameter, at::ones({7}, at::kDouble));
    }
    buffers.finish_grad_sync();
    optimizer.step({.lr = rate, .weight_decay = weight_decay});
    for (size_t i = 0; i < 5; ++i) {
      const auto factor = static_cast<double>(i);
      value[i] -= rate * (1 + factor) * (1 + weight_decay * factor * value[i]);
      EXPECT_NEAR(parameters.all()[i].tensor[3].item<double>(), value[i], 1e-14);
    }
  }
}

}  // namespace
}  // namespace teratron
