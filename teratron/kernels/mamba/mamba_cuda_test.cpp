// The fused kernels of mamba_core.h against its f64 arithmetic on the CPU, twice for the same bits.
#include "teratron/kernels/mamba/fused_mamba.h"
#include "teratron/kernels/mamba/mamba_core.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

struct FusedMambaCase {
  MambaOptions options;
  int64_t tokens, batch;
  at::ScalarType type = at::kBFloat16;
  bool documents = false;
  bool states = false;  // before the first token, and a gradient of those after the last
  bool conv_bias = true;
};

struct FusedMambaProblem {
  explicit FusedMambaProblem(const FusedMambaCase& of) : options(of.options) {
    const int64_t h = options.heads;
    input.zxbcdt_SB = randn({of.tokens, of.batch, options.width()}, of.type);
    weights.conv_weight = randn({options.channels(), 1, 4}, of.type) * 0.5;
    if (of.conv_bias) weights.conv_bias = randn({options.channels()}, of.type);
    weights.dt_bias = randn({h}) - 2.0;
    weights.A_log = randn({h}) * 0.5;
    weights.D = randn({h});
    if (options.gate == MambaGate::before_norm || options.gate == MambaGate::after_norm)
      weights.norm_weight = randn({options.inner()}, of.type);
    dy = randn({of.tokens, of.batch, options.inner()}, of.type);
    if (of.states) {
      input.before = {randn({of.batch, 3, options.channels()}, of.type),
                      randn({of.batch, h, options.head_dim, options.state})};
      dssm = randn(input.before.ssm.sizes());
    }
    // Documents of 1, 2, ... tokens in one sequence, shifted in the next.
    if (!of.documents) return;
    const at::Tensor token = at::arange(of.tokens, at::kDouble).unsqueeze(1) + at::arange(of.batch) * 5;
    input.document_SB = (token * 2).sqrt().floor().to(at::kLong);
  }
  MambaOptions options;
  MambaInput input;
  MambaWeights weights;
  at::Tensor dy, dssm;
};

template <typename Map>
FusedMambaProblem mapped(FusedMambaProblem p, Map&& map) {
  p.input.zxbcdt_SB = map(p.input.zxbcdt_SB);
  p.input.before = {map(p.input.before.conv), map(p.input.before.ssm)};
  for (at::Tensor MambaWeights::* weight :
       {&MambaWeights::conv_weight, &MambaWeights::conv_bias, &MambaWeights::dt_bias, &MambaWeights::A_log,
        &MambaWeights::D, &MambaWeights::norm_weight})
    p.weights.*weight = map(p.weights.*weight);
  p.dy = map(p.dy);
  p.dssm = map(p.dssm);
  return p;
}

FusedMambaProblem on_gpu(const FusedMambaProblem& of) {
  FusedMambaProblem p = mapped(of, [](const at::Tensor& x) { return gpu(x); });
  p.input.document_SB = gpu(of.input.document_SB);
  return p;
}

// What the products round several times.
double bound(at::ScalarType type) {
  return type == at::kHalf ? 2e-3 : 1.2e-2;
}

void expect_near(const at::Tensor& actual, const at::Tensor& expected, double limit, const char* what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!actual.defined()) return;
  const at::Tensor error = f64(actual.cpu()) - expected;
  EXPECT_LT(error.norm().item<double>(), limit * expected.norm().item<double>()) << what;
  // No place is off by more than a few roundings of large values.
  EXPECT_LT(error.abs().max().item<double>(), 3 * limit * expected.abs().max().item<double>()) << what;
}

void expect_columns_near(const at::Tensor& actual, const at::Tensor& expected, const MambaOptions& o,
                         double limit) {
  const int64_t gn = o.groups * o.state, z = o.gate == MambaGate::none ? 0 : o.inner();
  const std::vector<int64_t> widths = {z, o.inner(), gn, gn, o.heads};
  const auto a = actual.split_with_sizes(widths, 2), e = expected.split_with_sizes(widths, 2);
  const std::array<const char*, 5> names = {"dz", "dx", "dB", "dC", "ddt"};
  for (size_t i = 0; i < names.size(); ++i) {
    if (widths[i] > 0) expect_near(a[i], e[i], limit, names[i]);
  }
}

// Terms of a sum over tokens cancel, their errors do not: `terms` [S, B, H] has the size of those.
void expect_sum_near(const at::Tensor& actual, const at::Tensor& expected, const at::Tensor& terms,
                     double limit, const char* what) {
  const at::Tensor error = f64(actual.cpu()) - expected;
  EXPECT_LT(error.norm().item<double>(), limit * terms.norm().item<double>()) << what;
}

void check_fused_mamba(const FusedMambaCase& of) {
  const MambaOptions& o = of.options;
  SCOPED_TRACE(fmt::format("{} [{} tokens, {}] {} heads of {} in {} groups, state {}, gate {}, documents {}",
                           at::toString(of.type), of.tokens, of.batch, o.heads, o.head_dim, o.groups, o.state,
                           static_cast<int>(o.gate), of.documents));
  at::manual_seed(1);
  const FusedMambaProblem p(of), p64 = mapped(p, [](const at::Tensor& x) { return f64(x); }),
                                 device = on_gpu(p);
  const double limit = bound(of.type);
  const auto forward = [&] { return mamba_forward(device.input, device.weights, o); };
  const MambaOutput y = forward(), y_again = forward(), y64 = mamba_forward(p64.input, p64.weights, o);
  EXPECT_TRUE(same_bits(y.y_SB.cpu(), y_again.y_SB.cpu()));
  expect_near(y.y_SB, y64.y_SB, limit, "y");
  expect_near(y.after.ssm, y64.after.ssm, limit, "ssm");
  expect_near(y.after.conv, y64.after.conv, 1e-12, "conv");
  const auto backward = [&] {
    return mamba_backward(device.dy, device.dssm, device.input, device.weights, o);
  };
  const MambaGradients g = backward(), g_again = backward();
  const MambaGradients g64 = mamba_backward(p64.dy, p64.dssm, p64.input, p64.weights, o);
  EXPECT_TRUE(same_bits(g.dzxbcdt_SB.cpu(), g_again.dzxbcdt_SB.cpu()));
  EXPECT_TRUE(same_bits(g.weights.A_log.cpu(), g_again.weights.A_log.cpu()));
  expect_columns_near(g.dzxbcdt_SB, g64.dzxbcdt_SB, o, 2 * limit);
  expect_near(g.dssm, g64.dssm, limit, "dssm");
  expect_near(g.weights.conv_weight, g64.weights.conv_weight, limit, "conv_weight");
  expect_near(g.weights.conv_bias, g64.weights.conv_bias, limit, "conv_bias");
  const at::Tensor ddt = g64.dzxbcdt_SB.narrow(2, o.width() - o.heads, o.heads);
  expect_sum_near(g.weights.dt_bias, g64.weights.dt_bias, ddt, limit, "dt_bias");
  expect_sum_near(g.weights.A_log, g64.weights.A_log, ddt, 2 * limit, "A_log");
  expect_near(g.weights.D, g64.weights.D, limit, "D");
  expect_near(g.weights.norm_weight, g64.weights.norm_weight, limit, "norm_weight");
}

MambaOptions options_of(int64_t heads, int64_t head_dim, int64_t groups, int64_t state,
                        MambaGate gate = MambaGate::before_norm) {
  return {.heads = heads, .head_dim = head_dim, .groups = groups, .state = state, .gate = gate};
}

TEST_F(Gpu, MambaOfManyShapes) {
  check_fused_mamba({.options = options_of(4, 64, 1, 128), .tokens = 256, .batch = 2});
  check_fused_mamba({.options = options_of(16, 64, 1, 128), .tokens = 300, .batch = 1, .states = true});
  check_fused_mamba({.options = options_of(24, 80, 2, 128), .tokens = 130, .batch = 2});
  check_fused_mamba({.options = options_of(8, 128, 4, 64), .tokens = 193, .batch = 1, .states = true});
  check_fused_mamba({.options = options_of(4, 16, 2, 16), .tokens = 65, .batch = 3, .conv_bias = false});
  check_fused_mamba({.options = options_of(8, 24, 1, 40), .tokens = 2, .batch = 1, .states = true});
  check_fused_mamba({.options = options_of(8, 64, 8, 128), .tokens = 128, .batch = 2, .type = at::kHalf});
}

TEST_F(Gpu, MambaOfPackedDocuments) {
  check_fused_mamba({.options = options_of(4, 64, 1, 128), .tokens = 320, .batch = 2, .documents = true});
  check_fused_mamba({.options = options_of(12, 80, 1, 128), .tokens = 200, .batch = 1, .documents = true});
}

TEST_F(Gpu, MambaOfOtherGates) {
  for (const MambaGate gate : {MambaGate::after_norm, MambaGate::alone, MambaGate::none})
    check_fused_mamba({.options = options_of(8, 64, 2, 128, gate), .tokens = 140, .batch = 2});
}

TEST_F(Gpu, MambaWithLimitedTimeSteps) {
  MambaOptions options = options_of(8, 64, 1, 64);
  options.time_step_min = 0.05;
  options.time_step_max = 0.3;
  check_fused_mamba({.options = options, .tokens = 150, .batch = 2});
}

// Rows 5, none and 2 of the tables before a token, rows 0, 1 and 3 after it; the others stay.
TEST_F(Gpu, MambaStepsInPlace) {
  for (const MambaOptions& o :
       {options_of(8, 64, 2, 128), options_of(12, 80, 1, 64), options_of(4, 24, 4, 12)}) {
    at::manual_seed(1);
    const FusedMambaProblem p({.options = o, .tokens = 1, .batch = 3}), device = on_gpu(p);
    const auto ids = [](std::vector<int64_t> x) { return gpu(at::tensor(x, at::kLong)); };
    const StateTables tables{.conv = gpu(randn({6, 3, o.channels()}, at::kBFloat16)),
                             .recurrent = gpu(randn({6, o.heads, o.head_dim, o.state})),
                             .rows = {ids({5, -1, 2}), ids({0, 1, 3})}};
    const StateTables wide{f64(tables.conv.cpu()),
                           f64(tables.recurrent.cpu()),
                           {tables.rows.from_R.cpu(), tables.rows.to_R.cpu()}};
    const FusedMambaProblem p64 = mapped(p, [](const at::Tensor& x) { return f64(x); });
    const at::Tensor y = mamba_step(device.input.zxbcdt_SB[0], tables, device.weights, o);
    const at::Tensor expected = mamba_step(p64.input.zxbcdt_SB[0], wide, p64.weights, o);
    expect_near(y, expected, 5e-3, "y");
    expect_near(tables.recurrent, wide.recurrent, 1e-5, "ssm");
    expect_near(tables.conv, wide.conv, 1e-12, "conv");
  }
}

// In tensor operations: wider heads and states than the kernels take, and widths that 8 does not divide.
TEST_F(Gpu, MambaBeyondTheKernels) {
  for (const MambaOptions& o :
       {options_of(4, 64, 1, 256), options_of(4, 160, 2, 64), options_of(4, 20, 1, 12)}) {
    const FusedMambaCase of{.options = o, .tokens = 70, .batch = 2, .documents = true};
    check_fused_mamba(of);
    const FusedMambaProblem p = on_gpu(FusedMambaProblem(of));
    EXPECT_FALSE(mamba::fused_mamba_supports(p.input, p.weights, o));
  }
}

TEST_F(Gpu, MambaReadsWeightsOfF32) {
  at::manual_seed(2);
  const MambaOptions o = options_of(8, 64, 2, 128);
  const FusedMambaProblem p = on_gpu(FusedMambaProblem({.options = o, .tokens = 130, .batch = 2}));
  MambaWeights wide = p.weights;
  for (at::Tensor* weight : {&wide.conv_weight, &wide.conv_bias, &wide.norm_weight})
    *weight = weight->to(at::kFloat);
  const auto forward = [&](const MambaWeights& weights) {
    return mamba_forward(p.input, weights, o).y_SB.cpu();
  };
  EXPECT_TRUE(same_bits(forward(wide), forward(p.weights)));
  const auto backward = [&](const MambaWeights& weights) {
    return mamba_backward(p.dy, p.dssm, p.input, weights, o).dzxbcdt_SB.cpu();
  };
  EXPECT_TRUE(same_bits(backward(wide), backward(p.weights)));
  const auto step = [&](const MambaWeights& weights) {
    const at::TensorOptions rows = p.input.zxbcdt_SB.options();
    const StateTables tables{
        .conv = at::ones({2, 3, o.channels()}, rows),
        .recurrent = at::ones({2, o.heads, o.head_dim, o.state}, rows.dtype(at::kFloat)),
        .rows = {at::zeros({1}, rows.dtype(at::kLong)), at::ones({1}, rows.dtype(at::kLong))}};
    return mamba_step(p.input.zxbcdt_SB[0].narrow(0, 0, 1), tables, weights, o).cpu();
  };
  EXPECT_TRUE(same_bits(step(wide), step(p.weights)));
}

// Norms wider than a thread's packs.
TEST_F(Gpu, MambaOfWideGroups) {
  check_fused_mamba({.options = options_of(64, 64, 1, 64), .tokens = 70, .batch = 1});
  check_fused_mamba({.options = options_of(60, 80, 1, 64), .tokens = 70, .batch = 1});
}

}  // namespace
}  // namespace teratron
