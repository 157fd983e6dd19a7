// optimizer_step.h
#include "teratron/kernels/optimizer/optimizer_step.h"

#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

at::Tensor f64s(std::vector<double> values) {
  return at::tensor(values, at::kDouble);
}

StepScalars scalars(std::vector<double> lr, std::vector<double> weight_decay) {
  return {.lr = f64s(std::move(lr)),
          .weight_decay = f64s(std::move(weight_decay)),
          .step = at::zeros({1}, at::kLong),
          .grad_scale = {},
          .found_inf = {}};
}

at::Tensor example_param() {
  return f64s({0.25, -0.5, 0.75, -1.0, 1.25});
}

at::Tensor example_grad(int t) {
  at::Tensor grad = at::empty({5}, at::kDouble);
  for (int i = 0; i < 5; ++i) grad[i] = ((7 * i + 3 * t) % 5 - 2) / 8.0 + 0.03125;
  return grad;
}

AdamShard adam_shard(const at::Tensor& param) {
  return {.weights = {param},
          .grad = at::zeros_like(param),
          .exp_avg = at::zeros_like(param),
          .exp_avg_sq = at::zeros_like(param),
          .groups = {}};
}

/// Three steps on the example.
AdamShard run_adam(at::ScalarType type, bool decoupled) {
  AdamShard shard = adam_shard(example_param().to(type));
  const StepScalars s = scalars({0.01}, {0.1});
  for (int t = 1; t <= 3; ++t) {
    shard.grad.copy_(example_grad(t));
    advance_step_(s.step, {});
    adam_step_(shard, s, {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decoupled_weight_decay = decoupled});
  }
  return shard;
}

// Expected values: three steps of torch.optim (2.11, f64) with lr 0.01, betas (0.9, 0.95), weight decay 0.1.
TEST(Adam, MatchesPyTorch) {
  const at::Tensor adamw = f64s(
      {0.2312542971266817, -0.4844308957383401, 0.7444681199076886, -1.01521925167392, 1.2468650832831816});
  const at::Tensor adam = f64s(
      {0.229591277980033, -0.4812136846724296, 0.7380046509961584, -1.0096345414669046, 1.2241807173394117});
  const AdamShard shard = run_adam(at::kDouble, true);
  EXPECT_LT(relative_error(shard.weights.param, adamw), 1e-15);
  EXPECT_LT(
      relative_error(shard.exp_avg, f64s({0.03234374999999999, -0.013031249999999996, -0.0015312500000000018,
                                          0.003718749999999999, 0.020843749999999998})),
      1e-15);
  EXPECT_LT(relative_error(shard.exp_avg_sq,
                           f64s({0.005474243164062505, 0.0037584228515625036, 0.003537719726562503,
                                 0.006008422851562505, 0.004202758789062503})),
            1e-15);
  EXPECT_LT(relative_error(run_adam(at::kDouble, false).weights.param, adam), 1e-15);
  EXPECT_LT(relative_error(run_adam(at::kFloat, true).weights.param, adamw), 2e-7);
  EXPECT_LT(relative_error(run_adam(at::kFloat, false).weights.param, adam), 2e-7);
}

TEST(Sgd, MatchesPyTorch) {
  SgdShard shard{
      .weights = {example_param()}, .grad = {}, .momentum_buffer = at::zeros({5}, at::kDouble), .groups = {}};
  const StepScalars s = scalars({0.01}, {0.1});
  for (int t = 1; t <= 3; ++t) {
    shard.grad = example_grad(t);
    sgd_step_(shard, s, 0.9);
  }
  EXPECT_LT(relative_error(shard.weights.param, f64s({0.2433380731875, -0.4933072723125, 0.7475419739375,
                                                      -1.0004119268125, 1.2398771246875})),
            1e-15);
  EXPECT_LT(
      relative_error(shard.momentum_buffer, f64s({0.39074893125000004, -0.26516651875, 0.18778385625000005,
                                                  -0.23425106875, 0.5466937812500001})),
      1e-15);
}

TEST(Sgd, WithoutMomentumNeedsNoBuffer) {
  SgdShard shard{.weights = {at::ones({3})}, .grad = at::full({3}, 2.f), .momentum_buffer = {}, .groups = {}};
  sgd_step_(shard, scalars({0.25}, {1}), 0);
  EXPECT_TRUE(at::equal(shard.weights.param, at::full({3}, 0.25f)));
}

TEST(Adam, GroupsHaveSeparateRateAndDecay) {
  const at::Tensor start = at::randn({150}), grad = at::randn({150});
  AdamShard both = adam_shard(start.clone());
  both.grad = grad;
  both.groups = at::tensor({1, 0, 1}, at::kByte);
  StepScalars s = scalars({0.1, 0.01}, {0.5, 0});
  s.step.fill_(4);
  adam_step_(both, s, {});
  for (const auto& [first, count, group] : {std::array{0, 64, 1}, {64, 64, 0}, {128, 22, 1}}) {
    AdamShard one = adam_shard(start.narrow(0, first, count).clone());
    one.grad = grad.narrow(0, first, count).clone();
    StepScalars t = scalars({s.lr[group].item<double>()}, {s.weight_decay[group].item<double>()});
    t.step.fill_(4);
    adam_step_(one, t, {});
    EXPECT_TRUE(same_bits(one.weights.param, both.weights.param.narrow(0, first, count).clone()));
  }
}

TEST(Adam, ScalesLowPrecisionGradientsAndWritesTheCopy) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    AdamShard low = adam_shard(at::randn({200}));
    AdamShard full = adam_shard(low.weights.param.clone());
    low.grad = at::randn({200}).to(type);
    low.weights.copy = at::empty({200}, at::kHalf);
    full.grad = low.grad.to(at::kFloat) * 0.125f;
    StepScalars s = scalars({0.1}, {0.1});
    s.step.fill_(1);
    adam_step_(full, s, {});
    s.grad_scale = at::tensor({0.125f});
    adam_step_(low, s, {});
    EXPECT_TRUE(same_bits(low.weights.param, full.weights.param));
    EXPECT_TRUE(same_bits(low.weights.copy, full.weights.param.to(at::kHalf)));
  }
}

// bf16 with its remainder steps like fp32.
TEST(SplitWeights, StepMatchesFp32) {
  const at::Tensor start = at::randn({200}) * 0.02;
  const MasterWeights whole{start.clone()};
  const MasterWeights halves{at::empty({200}, at::kBFloat16), at::empty({200}, at::kShort)};
  split_master_weights(start, halves.param, halves.remainder);
  const at::Tensor m = at::zeros({2, 200}), v = at::zeros({2, 200}), b = at::zeros({2, 200});
  const StepScalars s = scalars({1e-4}, {0.1});
  for (int64_t t = 1; t <= 20; ++t) {
    advance_step_(s.step, {});
    const at::Tensor grad = at::randn({200}).to(t % 2 == 0 ? at::kFloat : at::kBFloat16);
    adam_step_({whole, grad, m[0], v[0], {}}, s, {});
    adam_step_({halves, grad, m[1], v[1], {}}, s, {});
    sgd_step_({whole, grad, b[0], {}}, s, 0.9);
    sgd_step_({halves, grad, b[1], {}}, s, 0.9);
    ASSERT_TRUE(same_bits(join_master_weights(halves.param, halves.remainder), whole.param)) << t;
  }
  EXPECT_GT((whole.param - start).abs().max().item<float>(), 1e-3);
  const double difference = (f64(halves.param) - f64(whole.param)).abs().max().item<double>();
  EXPECT_LE(difference, 0x1p-8 * whole.param.abs().max().item<double>());
}

at::Tensor floats_of(const std::vector<uint32_t>& bits) {
  at::Tensor x = at::empty({static_cast<int64_t>(bits.size())});
  std::memcpy(x.mutable_data_ptr(), bits.data(), bits.size() * sizeof(uint32_t));
  return x;
}

struct Halves {
  explicit Halves(const at::Tensor& x)
      : high(at::empty(x.sizes(), x.options().dtype(at::kBFloat16))),
        low(at::empty(x.sizes(), x.options().dtype(at::kShort))) {
    split_master_weights(x, high, low);
  }
  at::Tensor high, low;
};

// Every bf16 with 64 remainders, including the extremes and the middle.
TEST(SplitWeights, JoinRestoresEveryBit) {
  std::vector<uint32_t> bits;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low = 0; low < 0x10000; low += 0x800) {
      bits.insert(bits.end(), {high << 16 | low, high << 16 | (low + 0x7FF)});
    }
  }
  const at::Tensor x = floats_of(bits), numbers = x.isnan().logical_not();
  const Halves halves(x);
  const at::Tensor joined = join_master_weights(halves.high, halves.low);
  EXPECT_TRUE(same_bits(joined.masked_select(numbers), x.masked_select(numbers)));
  EXPECT_TRUE(joined.isnan().equal(x.isnan()));
  EXPECT_TRUE(halves.high.isnan().equal(x.isnan()));
}

TEST(SplitWeights, HighHalfRoundsToNearestTiesAway) {
  const at::Tensor random = at::randn({100'000});
  const at::Tensor x = random.masked_select(random.view(at::kInt).bitwise_and(0xFFFF).ne(0x8000));
  EXPECT_TRUE(same_bits(Halves(x).high, x.to(at::kBFloat16)));
  const at::Tensor ties = floats_of({0x3F808000, 0x3F818000, 0xBF808000, 0x00008000, 0x7F7F8000});
  const at::Tensor away = floats_of({0x3F810000, 0x3F820000, 0xBF810000, 0x00010000, 0x7F800000});
  EXPECT_TRUE(same_bits(Halves(ties).high, away.to(at::kBFloat16)));
}

TEST(SplitWeights, FoundInfSkipsTheStep) {
  const Halves halves(at::randn({70}));
  const MasterWeights weights{halves.high, halves.low};
  const at::Tensor before = join_master_weights(halves.high, halves.low), grad = at::ones({70}),
                   m = at::zeros({70});
  StepScalars s = scalars({0.1}, {0.1});
  s.step.fill_(1);
  s.found_inf = at::ones({1});
  adam_step_({weights, grad, m, m.clone(), {}}, s, {});
  sgd_step_({weights, grad, m, {}}, s, 0.9);
  EXPECT_TRUE(same_bits(join_master_weights(halves.high, halves.low), before));
}

TEST(Adam, FoundInfSkipsTheStep) {
  AdamShard shard = adam_shard(at::randn({70}));
  shard.grad = at::full({70}, std::numeric_limits<float>::infinity());
  shard.weights.copy = at::zeros({70}, at::kHalf);
  const at::Tensor before = shard.weights.param.clone();
  StepScalars s = scalars({0.1}, {0.1});
  s.found_inf = at::ones({1});
  advance_step_(s.step, s.found_inf);
  adam_step_(shard, s, {});
  sgd_step_({.weights = shard.weights, .grad = shard.grad, .momentum_buffer = shard.exp_avg, .groups = {}}, s,
            0.9);
  EXPECT_EQ(s.step.item<int64_t>(), 0);
  EXPECT_TRUE(same_bits(shard.weights.param, before));
  for (const at::Tensor& t : {shard.exp_avg, shard.exp_avg_sq, shard.weights.copy})
    EXPECT_EQ(t.abs().sum().item<float>(), 0);
  s.found_inf.zero_();
  advance_step_(s.step, s.found_inf);
  EXPECT_EQ(s.step.item<int64_t>(), 1);
}

}  // namespace
}  // namespace teratron
