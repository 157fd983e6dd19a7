// Steps of the optimizer against the formulas of torch.optim.SGD and torch.optim.AdamW, in double precision.
#include "teratron/optim/optimizer.h"

#include <cmath>
#include <map>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

namespace teratron {
namespace {

constexpr double lr = 0.05;
constexpr double decoupled_lr = 0.2;
constexpr double weight_decay = 0.1;

// A model of one parameter of each kind.
struct Model {
  explicit Model(const OptimizerOptions& options) : parameters({.dtype = at::kDouble, .seed = 3}) {
    const Scope scope(parameters);
    for (const char* name : {"embedding.word_embeddings.weight", "decoder.weight", "output_layer.weight"}) {
      add(scope, name, true);
    }
    add(scope, "decoder.bias", false);
    std::vector<Parameter*> all;
    for (Parameter& parameter : parameters.all()) all.push_back(&parameter);
    buffer = std::make_unique<FlatBuffer>(all, FlatBuffer::Options{.data_parallel = mesh.group(Axis::dp)});
    optimizer = std::make_unique<Optimizer>(*buffer, mesh, options);
  }
  static void add(const Scope& scope, const char* name, bool decays) {
    scope.parameter(name,
                    {.shard = {.global_shape = {7, 11}}, .init = Init::normal(1.0), .weight_decay = decays});
  }

  Mesh mesh;
  ParameterSet parameters;
  std::unique_ptr<FlatBuffer> buffer;
  std::unique_ptr<Optimizer> optimizer;
};

at::Tensor gradient_of(int64_t step, int64_t parameter) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(17 * step + parameter));
  return at::randn({7, 11}, generator, at::TensorOptions().dtype(at::kDouble));
}

// One parameter of the reference.
struct Reference {
  at::Tensor value, first, second;
  double rate, decay;
};

std::vector<Reference> references(const Model& model, bool has_decoupled_lr) {
  std::vector<Reference> all;
  for (const Parameter& parameter : model.parameters.all()) {
    const bool ends = parameter.name.starts_with("embedding") || parameter.name.starts_with("output");
    all.push_back({.value = parameter.tensor.detach().clone(),
                   .first = at::zeros({7, 11}, at::kDouble),
                   .second = at::zeros({7, 11}, at::kDouble),
                   .rate = ends && has_decoupled_lr ? decoupled_lr : lr,
                   .decay = parameter.options.weight_decay ? weight_decay : 0.0});
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
  OptimizerOptions options;
  std::optional<double> decoupled;
};

class OptimizerStep : public testing::TestWithParam<Case> {};

TEST_P(OptimizerStep, FollowsTheFormula) {
  const auto& [options, decoupled] = GetParam();
  Model model(options);
  std::vector<Reference> expected = references(model, decoupled.has_value());
  for (int64_t step = 1; step <= 3; ++step) {
    model.buffer->start_step();
    model.buffer->expect_last_microbatch();
    int64_t i = 0;
    for (Parameter& parameter : model.parameters.all()) {
      const at::Tensor gradient = gradient_of(step, i);
      expect_gradient(parameter);
      add_gradient(parameter, gradient);
      Reference& reference = expected[static_cast<size_t>(i++)];
      if (options.kind == OptimizerKind::sgd) sgd(reference, gradient, options.sgd_momentum);
      if (options.kind == OptimizerKind::adam) adamw(reference, gradient, step);
    }
    model.buffer->finish_reduction();
    model.optimizer->step({.lr = lr, .weight_decay = weight_decay, .decoupled_lr = decoupled});
  }
  size_t i = 0;
  for (const Parameter& parameter : model.parameters.all()) {
    const at::Tensor& reference = expected[i++].value;
    EXPECT_TRUE(at::allclose(parameter.tensor, reference, 1e-12, 1e-12)) << parameter.name;
  }
}

// Nobody clears the buffer: the first gradient of a step is written over what the last one left.
TEST(Gradients, ForgetTheLastStep) {
  Model model({});
  FlatBuffer& buffer = *model.buffer;
  Parameter &once = model.parameters.all()[0], &twice = model.parameters.all()[1],
            &never = model.parameters.all()[2], &product = model.parameters.all()[3];
  const at::Tensor dy = at::randn({5, 7}, at::kDouble), x = at::randn({5, 11}, at::kDouble);
  for (const bool later : {false, true}) {
    buffer.start_step();
    for (Parameter& parameter : model.parameters.all()) parameter.main_grad.fill_(std::nan(""));
    if (later) buffer.expect_last_microbatch();
    for (int64_t use = 0; use < 2; ++use) {
      for (Parameter* parameter : {&twice, &product}) expect_gradient(*parameter);
      add_gradient(twice, gradient_of(1, use));
      add_weight_gradient(product, dy, x);
    }
    expect_gradient(once);
    add_gradient(once, gradient_of(2, 0));
    buffer.finish_reduction();
    EXPECT_TRUE(at::equal(once.main_grad, gradient_of(2, 0)));
    EXPECT_TRUE(at::equal(twice.main_grad, gradient_of(1, 0) + gradient_of(1, 1)));
    EXPECT_TRUE(at::allclose(product.main_grad, 2 * at::matmul(dy.t(), x)));
    EXPECT_TRUE(at::equal(never.main_grad, at::zeros({7, 11}, at::kDouble)));
  }
}

// A kernel may write the first gradient of a step where it belongs, and add later ones to it.
TEST(Gradients, AreSummedInPlace) {
  Model model({});
  Parameter& parameter = model.parameters.all()[0];
  model.buffer->start_step();
  parameter.main_grad.fill_(std::nan(""));
  for (int64_t use = 0; use < 2; ++use) {
    expect_gradient(parameter);
    const auto [out, adds] = gradient_place(parameter);
    EXPECT_TRUE(out.is_same(parameter.main_grad));
    EXPECT_EQ(adds, use > 0);
    adds ? out.add_(gradient_of(1, use)) : out.copy_(gradient_of(1, use));
    add_gradient(parameter, out);
  }
  EXPECT_TRUE(at::equal(parameter.main_grad, gradient_of(1, 0) + gradient_of(1, 1)));
}

TEST(GradientsDeathTest, AreNotAddedToThemselves) {
  Model model({});
  Parameter& parameter = model.parameters.all()[0];
  model.buffer->start_step();
  expect_gradient(parameter);
  EXPECT_DEATH(add_gradient(parameter, parameter.main_grad.view({-1})), "lies among the sums");
}

INSTANTIATE_TEST_SUITE_P(
    All, OptimizerStep,
    testing::Values(Case{{.kind = OptimizerKind::sgd, .sgd_momentum = 0.9, .clip_grad = 0.0}, {}},
                    Case{{.kind = OptimizerKind::sgd, .sgd_momentum = 0.0, .clip_grad = 0.0}, {}},
                    Case{{.kind = OptimizerKind::sgd, .sgd_momentum = 0.9, .clip_grad = 0.0}, decoupled_lr},
                    Case{{.kind = OptimizerKind::adam, .clip_grad = 0.0}, {}},
                    Case{{.kind = OptimizerKind::adam, .clip_grad = 0.0}, decoupled_lr}));

TEST(OptimizerState, IsWhatTheKindNeeds) {
  const auto kinds = [](const OptimizerOptions& options) {
    std::map<std::string, int> count;
    for (const StateTensor& state : Model(options).optimizer->state()) {
      ++count[state.name.substr(0, state.name.find('.', sizeof("optimizer.") - 1))];
    }
    return count;
  };
  using Count = std::map<std::string, int>;
  EXPECT_EQ(kinds({}), (Count{{"optimizer.exp_avg", 4}, {"optimizer.exp_avg_sq", 4}}));
  EXPECT_EQ(kinds({.kind = OptimizerKind::sgd}), (Count{{"optimizer.momentum_buffer", 4}}));
  EXPECT_EQ(kinds({.kind = OptimizerKind::sgd, .sgd_momentum = 0.0}), Count{});
}

}  // namespace
}  // namespace teratron
