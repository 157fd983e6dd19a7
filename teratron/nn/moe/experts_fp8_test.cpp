// Experts in FP8 against plain tensor operations on quantized values, with one scale for the rows of all
// experts and one for all their weights.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "teratron/nn/moe/experts.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

constexpr int64_t fp8_hidden = 32, fp8_width = 48, fp8_rest = 3;  // rows of no expert
const std::vector<int64_t> fp8_counts = {5, 0, 40, 1};            // of each expert

struct Fp8Experts {
  ParameterSet set;
  Experts experts;

  explicit Fp8Experts(const std::optional<Fp8Options>& fp8, const std::optional<LoraOptions>& lora = {})
      : set({.fp8 = fp8, .lora = lora}),
        experts(Scope(set, "mlp").with_fp8(),
                {.experts = std::ssize(fp8_counts),
                 .hidden = fp8_hidden,
                 .ffn_hidden = fp8_width,
                 .fc1_init = Init::normal(0.3),
                 .fc2_init = Init::normal(0.3)},
                {}) {}

  at::Tensor weights(const char* layer) {
    std::vector<at::Tensor> all;
    for (int64_t e = 0; e < std::ssize(fp8_counts); ++e)
      all.push_back(set.find(fmt::format("mlp.experts.{}.{}.weight", e, layer))->tensor.detach());
    return at::stack(all);
  }
};

using Named = std::map<std::string, at::Tensor>;

struct ExpertRows {
  at::Tensor x, p, dy;
};

/// Rows of no expert are NaN.
ExpertRows expert_rows(double size) {
  const int64_t used = ends_of(fp8_counts)[-1].item<int64_t>(), all = used + fp8_rest;
  ExpertRows rows{randn({all, fp8_hidden}) * size, at::rand({all}), randn({all, fp8_hidden}) * size};
  for (const at::Tensor& tensor : {rows.x, rows.p, rows.dy}) tensor.narrow(0, used, fp8_rest).fill_(NAN);
  return rows;
}

Named run(Fp8Experts& model, const ExpertRows& rows) {
  const at::Tensor x = rows.x.clone().requires_grad_(), p = rows.p.clone().requires_grad_();
  const int64_t used = ends_of(fp8_counts)[-1].item<int64_t>();
  const at::Tensor y = model.experts.forward(x, p, {.ends_E = ends_of(fp8_counts)});
  y.backward(rows.dy);
  Named results{{"y", y.detach().narrow(0, 0, used)},
                {"dx", x.grad().narrow(0, 0, used)},
                {"dp", p.grad().narrow(0, 0, used)}};
  for (Parameter& parameter : model.set.all()) {
    EXPECT_EQ(parameter.pending_grads, 0) << parameter.name;
    if (parameter.options.trainable) results[parameter.name] = parameter.main_grad.clone();
    parameter.grad_is_stale = true;
  }
  return results;
}

/// Scales of earlier calls, or of the tensor itself.
class Quantizer {
 public:
  explicit Quantizer(bool enabled) : enabled_(enabled) {}

  at::Tensor operator()(const std::string& name, const at::Tensor& x) {
    if (!enabled_) return x.to(at::kDouble);
    const bool gradient = name.starts_with("d");
    const double largest = gradient ? 57344.0 : 448.0;
    const float amax = x.abs().max().item<float>();
    const float scale = static_cast<float>(largest) / (amaxes_.contains(name) ? amaxes_[name] : amax);
    next_[name] = amax;
    const at::Tensor q = (x.to(at::kFloat) * scale).clamp(-largest, largest);
    return q.to(gradient ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn).to(at::kDouble) / scale;
  }
  void next_step() { amaxes_ = next_; }

 private:
  bool enabled_;
  std::map<std::string, float> amaxes_, next_;
};

at::Tensor by_expert(const at::Tensor& x_R, const at::Tensor& w_EOI) {
  std::vector<at::Tensor> rows;
  int64_t e = 0;
  for (const TestGroup& group : groups_of(fp8_counts))
    rows.push_back(x_R.narrow(0, group.begin, group.rows).matmul(w_EOI[e++].t()));
  return at::cat(rows);
}

Named reference(Fp8Experts& model, const ExpertRows& rows, Quantizer& quantize) {
  const int64_t used = ends_of(fp8_counts)[-1].item<int64_t>();
  const at::Tensor p = rows.p.narrow(0, 0, used).to(at::kDouble).unsqueeze(1);
  const at::Tensor w1 = quantize("w1", model.weights("linear_fc1")),
                   w2 = quantize("w2", model.weights("linear_fc2")),
                   x = quantize("x", rows.x.narrow(0, 0, used));
  const at::Tensor z = by_expert(x, w1).requires_grad_();
  const std::vector<at::Tensor> halves = z.chunk(2, 1);
  const at::Tensor a = at::silu(halves[0]) * halves[1];
  const at::Tensor h = quantize("h", (a * p).detach()), dy = quantize("dy", rows.dy.narrow(0, 0, used)),
                   da = by_expert(dy, w2.transpose(1, 2));
  a.backward(da * p);
  const at::Tensor dz = quantize("dz", z.grad());
  Named results{
      {"y", by_expert(h, w2)}, {"dx", by_expert(dz, w1.transpose(1, 2))}, {"dp", (a.detach() * da).sum(1)}};
  int64_t e = 0;
  for (const TestGroup& group : groups_of(fp8_counts)) {
    const auto of = [&](const at::Tensor& rows_R) { return rows_R.narrow(0, group.begin, group.rows); };
    const std::string name = fmt::format("mlp.experts.{}.", e++);
    results[name + "linear_fc1.weight"] = of(dz).t().mm(of(x));
    results[name + "linear_fc2.weight"] = of(dy).t().mm(of(h));
  }
  return results;
}

void expect_close_to(const Named& actual, const Named& expected, double bound) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected)
    EXPECT_LT(relative_error(actual.at(name), tensor), bound) << name;
}

// A value that fp32 rounds to the other side of the middle between two FP8 values is one in thousands.
TEST(ExpertsInFp8, EqualQuantizedProducts) {
  for (const auto recipe : {Fp8Options::Recipe::delayed, Fp8Options::Recipe::tensorwise}) {
    Fp8Experts model(Fp8Options{.recipe = recipe});
    Quantizer quantize(true), exact(false);
    for (const double size : {1.0, 0.7, 1.2}) {
      const ExpertRows rows = expert_rows(size);
      const Named actual = run(model, rows), expected = reference(model, rows, quantize);
      expect_close_to(actual, expected, 4e-3);
      EXPECT_GT(relative_error(actual.at("y"), reference(model, rows, exact).at("y")), 1e-2);
      model.set.fp8()->update({});
      if (recipe == Fp8Options::Recipe::delayed) quantize.next_step();
    }
  }
}

TEST(ExpertsInFp8, AddUpGradients) {
  Fp8Experts model(Fp8Options{});
  const ExpertRows rows = expert_rows(1.0);
  const Named once = run(model, rows);
  const std::string name = "mlp.experts.2.linear_fc1.weight";
  run(model, rows);
  model.set.find(name)->grad_is_stale = false;
  EXPECT_LT(relative_error(run(model, rows).at(name), 2 * once.at(name)), 1e-6);
}

TEST(ExpertsInFp8, KeepWeightGradientsInTheModelsDtype) {
  const ExpertRows rows = expert_rows(1.0);
  Fp8Experts plain(std::nullopt), all(Fp8Options{}), some(Fp8Options{.weight_gradients = false});
  const Named exact = run(plain, rows), in_fp8 = run(all, rows), in_dtype = run(some, rows);
  EXPECT_TRUE(at::equal(in_dtype.at("dx"), in_fp8.at("dx")));
  const std::string name = "mlp.experts.2.linear_fc2.weight";
  EXPECT_LT(relative_error(in_dtype.at(name), exact.at(name)),
            0.8 * relative_error(in_fp8.at(name), exact.at(name)));
}

TEST(ExpertsInFp8, NeedNoGradientsOfFrozenWeights) {
  const ExpertRows rows = expert_rows(1.0);
  Fp8Experts trained(Fp8Options{}), frozen(Fp8Options{});
  for (Parameter& parameter : frozen.set.all()) freeze(parameter);
  const Named expected = run(trained, rows), actual = run(frozen, rows);
  EXPECT_EQ(actual.size(), 3U);
  for (const auto& [name, tensor] : actual) EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
}

// Adapters are not in FP8.
TEST(ExpertsInFp8, HaveAdapters) {
  const LoraOptions lora{.rank = 4, .alpha = 8.0, .targets = {"linear_fc1", "linear_fc2"}};
  Fp8Experts plain(std::nullopt, lora), fp8(Fp8Options{}, lora), base(Fp8Options{});
  for (Fp8Experts* model : {&plain, &fp8}) {
    for (Parameter& parameter : model->set.all()) {
      const at::NoGradGuard no_grad;
      at::manual_seed(std::ssize(parameter.name));
      if (is_lora(parameter.name)) {
        parameter.tensor.copy_(0.1 * randn(parameter.tensor.sizes()));
      } else {
        freeze(parameter);
      }
    }
  }
  const ExpertRows rows = expert_rows(1.0);
  const Named exact = run(plain, rows), actual = run(fp8, rows);
  EXPECT_EQ(actual.size(), 3U + 4 * 4);  // A and B of two layers of each expert
  expect_close_to(actual, exact, 0.1);
  EXPECT_GT(relative_error(actual.at("y"), run(base, rows).at("y")), 0.1);
}

TEST(ExpertsInFp8, RecordOnlyInTraining) {
  Fp8Experts model(Fp8Options{});
  const ExpertRows rows = expert_rows(1.0);
  run(model, rows);
  model.set.fp8()->update({});
  {
    const at::NoGradGuard no_grad;
    model.experts.forward(rows.x, rows.p, {.ends_E = ends_of(fp8_counts)});
  }
  model.set.fp8()->update({});
  const std::vector<Fp8Scaling::State> state = model.set.fp8()->state();
  ASSERT_EQ(state.size(), 4U);
  EXPECT_EQ(state[0].name, "fp8_scale.mlp.experts.linear_fc1.weight");
  for (const size_t history : {1, 3}) {
    EXPECT_EQ(state[history].values[0].item<float>(), 0.0F);
    EXPECT_GT(state[history].values[1].item<float>(), 0.0F);  // weights are cast once per step
    EXPECT_EQ(state[history].values[2].item<float>(), 0.0F);
  }
}

TEST(ExpertsInFp8, HaveGradientsWithoutRows) {
  Fp8Experts model(Fp8Options{});
  const at::Tensor x = at::empty({0, fp8_hidden}).requires_grad_(), p = at::empty({0}).requires_grad_();
  const at::Tensor y = model.experts.forward(x, p, {.ends_E = at::zeros({4}, at::kInt)});
  EXPECT_EQ(y.sizes(), x.sizes());
  y.backward(at::empty_like(y));
  for (const Parameter& parameter : model.set.all())
    EXPECT_TRUE(at::equal(parameter.main_grad, at::zeros_like(parameter.main_grad))) << parameter.name;
}

}  // namespace
}  // namespace teratron
