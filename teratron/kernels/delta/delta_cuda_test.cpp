// The fused kernels of delta_core.h against its f64 arithmetic on the CPU, twice for the same bits.
#include "teratron/kernels/delta/delta_core.h"
#include "teratron/kernels/delta/fused_delta.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

struct FusedDeltaCase {
  DeltaOptions options;
  int64_t tokens, batch;
  at::ScalarType type = at::kBFloat16;
  bool documents = false;
  bool states = false;  // before the first token, and a gradient of those after the last
};

struct FusedDeltaProblem {
  explicit FusedDeltaProblem(const FusedDeltaCase& of) : options(of.options) {
    input.qkvzba_SB = randn({of.tokens, of.batch, options.width()}, of.type);
    weights.conv_weight = randn({options.channels(), 1, 4}, of.type) * 0.5;
    weights.dt_bias = randn({options.value_heads}, of.type) - 2.0;
    weights.A_log = randn({options.value_heads}, of.type) * 0.5;
    weights.norm_weight = randn({options.value_dim}, of.type);
    dy = randn({of.tokens, of.batch, options.values()}, of.type);
    if (of.states) {
      input.before = {
          randn({of.batch, 3, options.channels()}, of.type),
          randn({of.batch, options.value_heads, options.key_dim, options.value_dim}, at::kFloat) * 0.2};
      drule = randn(input.before.rule.sizes());
    }
    // Documents of 1, 2, ... tokens in one sequence, shifted in the next.
    if (!of.documents) return;
    const at::Tensor token = at::arange(of.tokens, at::kDouble).unsqueeze(1) + at::arange(of.batch) * 5;
    input.document_SB = (token * 2).sqrt().floor().to(at::kLong);
  }
  DeltaOptions options;
  DeltaInput input;
  DeltaWeights weights;
  at::Tensor dy, drule;
};

template <typename Map>
FusedDeltaProblem mapped(FusedDeltaProblem p, Map&& map) {
  for (at::Tensor* x :
       {&p.input.qkvzba_SB, &p.input.before.conv, &p.input.before.rule, &p.weights.conv_weight,
        &p.weights.dt_bias, &p.weights.A_log, &p.weights.norm_weight, &p.dy, &p.drule})
    *x = map(*x);
  return p;
}

void expect_near(const at::Tensor& actual, const at::Tensor& expected, double limit, const char* what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  const at::Tensor error = f64(actual.cpu()) - expected;
  EXPECT_LT(error.norm().item<double>(), limit * expected.norm().item<double>()) << what;
  // No place is off by more than a few roundings of large values.
  EXPECT_LT(error.abs().max().item<double>(), 4 * limit * expected.abs().max().item<double>()) << what;
}

// Terms of a sum over tokens cancel, their errors do not: `terms` [S, B, N] has the size of those.
void expect_sum_near(const at::Tensor& actual, const at::Tensor& expected, const at::Tensor& terms,
                     double limit, const char* what) {
  const at::Tensor error = f64(actual.cpu()) - expected;
  EXPECT_LT(error.norm().item<double>(), limit * terms.norm().item<double>()) << what;
}

void check_fused_delta(const FusedDeltaCase& of) {
  const DeltaOptions& o = of.options;
  SCOPED_TRACE(fmt::format("{} [{} tokens, {}] {} heads of {}, {} of {}, documents {}", at::toString(of.type),
                           of.tokens, of.batch, o.key_heads, o.key_dim, o.value_heads, o.value_dim,
                           of.documents));
  at::manual_seed(1);
  const FusedDeltaProblem p(of), p64 = mapped(p, [](const at::Tensor& x) { return f64(x); });
  FusedDeltaProblem device = mapped(p, [](const at::Tensor& x) { return gpu(x); });
  device.input.document_SB = gpu(p.input.document_SB);
  const double limit = of.type == at::kHalf ? 2.5e-3 : 1.5e-2;
  const auto forward = [&] { return delta_forward(device.input, device.weights, o); };
  const DeltaOutput y = forward(), y_again = forward(), y64 = delta_forward(p64.input, p64.weights, o);
  EXPECT_TRUE(same_bits(y.y_SB.cpu(), y_again.y_SB.cpu()));
  expect_near(y.y_SB, y64.y_SB, limit, "y");
  expect_near(y.after.rule, y64.after.rule, limit, "state");
  expect_near(y.after.conv, y64.after.conv, 1e-12, "conv");
  const auto backward = [&] {
    return delta_backward(device.dy, device.drule, device.input, device.weights, o);
  };
  const DeltaGradients d = backward(), d_again = backward();
  const DeltaGradients d64 = delta_backward(p64.dy, p64.drule, p64.input, p64.weights, o);
  EXPECT_TRUE(same_bits(d.dqkvzba_SB.cpu(), d_again.dqkvzba_SB.cpu()));
  EXPECT_TRUE(same_bits(d.weights.A_log.cpu(), d_again.weights.A_log.cpu()));
  const std::vector<int64_t> widths = {o.keys(),   o.keys(),      o.values(),
                                       o.values(), o.value_heads, o.value_heads};
  const auto a = d.dqkvzba_SB.split_with_sizes(widths, 2), e = d64.dqkvzba_SB.split_with_sizes(widths, 2);
  const std::array<const char*, 6> names = {"dq", "dk", "dv", "dz", "db", "da"};
  for (size_t i = 0; i < names.size(); ++i) expect_near(a[i], e[i], 2 * limit, names[i]);
  expect_near(d.drule, d64.drule, limit, "drule");
  expect_near(d.weights.conv_weight, d64.weights.conv_weight, 2 * limit, "conv_weight");
  expect_sum_near(d.weights.dt_bias, d64.weights.dt_bias, e[5], 2 * limit, "dt_bias");
  expect_sum_near(d.weights.A_log, d64.weights.A_log, e[5], 2 * limit, "A_log");
  expect_near(d.weights.norm_weight, d64.weights.norm_weight, limit, "norm_weight");
}

DeltaOptions options_of(int64_t key_heads, int64_t value_heads, int64_t key_dim, int64_t value_dim) {
  return {.key_heads = key_heads, .value_heads = value_heads, .key_dim = key_dim, .value_dim = value_dim};
}

TEST_F(Gpu, DeltaOfManyShapes) {
  check_fused_delta({.options = options_of(2, 2, 128, 128), .tokens = 64, .batch = 1});
  check_fused_delta({.options = options_of(2, 4, 128, 128), .tokens = 256, .batch = 2});
  check_fused_delta({.options = options_of(4, 4, 64, 64), .tokens = 300, .batch = 1, .states = true});
  check_fused_delta({.options = options_of(2, 4, 96, 192), .tokens = 130, .batch = 2});
  check_fused_delta({.options = options_of(2, 8, 16, 24), .tokens = 65, .batch = 3});
  check_fused_delta({.options = options_of(4, 4, 40, 40), .tokens = 2, .batch = 1, .states = true});
  check_fused_delta({.options = options_of(4, 8, 128, 128), .tokens = 192, .batch = 1, .type = at::kHalf});
  check_fused_delta({.options = options_of(32, 64, 128, 128), .tokens = 100, .batch = 3});
}

// In tensor operations: wider keys than the kernels take, and widths that 8 does not divide.
TEST_F(Gpu, DeltaBeyondTheKernels) {
  for (const DeltaOptions& o : {options_of(2, 2, 256, 64), options_of(2, 4, 12, 20)}) {
    const FusedDeltaCase of{.options = o, .tokens = 70, .batch = 2, .documents = true};
    check_fused_delta(of);
    const FusedDeltaProblem p = mapped(FusedDeltaProblem(of), [](const at::Tensor& x) { return gpu(x); });
    EXPECT_FALSE(delta::fused_delta_supports(p.input, p.weights, o));
  }
}

TEST_F(Gpu, DeltaOfPackedDocuments) {
  check_fused_delta({.options = options_of(2, 4, 128, 128), .tokens = 320, .batch = 2, .documents = true});
  check_fused_delta({.options = options_of(4, 4, 96, 64), .tokens = 200, .batch = 1, .documents = true});
}

// Rows 5, none and 2 of the tables before a token, rows 0, 1 and 3 after it; the others stay.
TEST_F(Gpu, DeltaStepsInPlace) {
  for (const DeltaOptions& o :
       {options_of(2, 4, 128, 128), options_of(4, 4, 96, 192), options_of(2, 6, 16, 24)}) {
    at::manual_seed(1);
    const FusedDeltaProblem p({.options = o, .tokens = 1, .batch = 3});
    const FusedDeltaProblem device = mapped(p, [](const at::Tensor& x) { return gpu(x); }),
                            p64 = mapped(p, [](const at::Tensor& x) { return f64(x); });
    const auto ids = [](std::vector<int64_t> x) { return gpu(at::tensor(x, at::kLong)); };
    const StateTables tables{.conv = gpu(randn({6, 3, o.channels()}, at::kBFloat16)),
                             .recurrent = gpu(randn({6, o.value_heads, o.key_dim, o.value_dim})),
                             .rows = {ids({5, -1, 2}), ids({0, 1, 3})}};
    const StateTables wide{f64(tables.conv.cpu()),
                           f64(tables.recurrent.cpu()),
                           {tables.rows.from_R.cpu(), tables.rows.to_R.cpu()}};
    const at::Tensor y = delta_step(device.input.qkvzba_SB[0], tables, device.weights, o);
    const at::Tensor expected = delta_step(p64.input.qkvzba_SB[0], wide, p64.weights, o);
    expect_near(y, expected, 5e-3, "y");
    expect_near(tables.recurrent, wide.recurrent, 1e-5, "rule");
    expect_near(tables.conv, wide.conv, 1e-12, "conv");
  }
}

TEST_F(Gpu, DeltaReadsWeightsOfF32) {
  at::manual_seed(2);
  const DeltaOptions o = options_of(2, 4, 64, 128);
  const FusedDeltaProblem p = mapped(FusedDeltaProblem({.options = o, .tokens = 130, .batch = 2}),
                                     [](const at::Tensor& x) { return gpu(x); });
  DeltaWeights wide = p.weights;
  for (at::Tensor* weight : {&wide.conv_weight, &wide.dt_bias, &wide.A_log, &wide.norm_weight})
    *weight = weight->to(at::kFloat);
  const auto forward = [&](const DeltaWeights& weights) {
    return delta_forward(p.input, weights, o).y_SB.cpu();
  };
  EXPECT_TRUE(same_bits(forward(wide), forward(p.weights)));
  const auto backward = [&](const DeltaWeights& weights) {
    return delta_backward(p.dy, p.drule, p.input, weights, o).dqkvzba_SB.cpu();
  };
  EXPECT_TRUE(same_bits(backward(wide), backward(p.weights)));
  const auto step = [&](const DeltaWeights& weights) {
    const at::TensorOptions rows = p.input.qkvzba_SB.options();
    const StateTables tables{
        .conv = at::ones({2, 3, o.channels()}, rows),
        .recurrent = at::ones({2, o.value_heads, o.key_dim, o.value_dim}, rows.dtype(at::kFloat)),
        .rows = {at::zeros({1}, rows.dtype(at::kLong)), at::ones({1}, rows.dtype(at::kLong))}};
    return delta_step(p.input.qkvzba_SB[0].narrow(0, 0, 1), tables, weights, o).cpu();
  };
  EXPECT_TRUE(same_bits(step(wide), step(p.weights)));
}

TEST_F(Gpu, DeltaWithSignedStates) {
  DeltaOptions options = options_of(4, 4, 64, 128);
  options.beta_scale = 2.0;
  check_fused_delta({.options = options, .tokens = 150, .batch = 2});
}

}  // namespace
}  // namespace teratron
