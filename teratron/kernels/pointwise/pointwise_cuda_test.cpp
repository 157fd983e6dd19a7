// The GPU kernels against the CPU's f64 arithmetic on the same (rounded) inputs, with poisoned memory, several widths
// (in packs, odd, wider than the registers hold) and twice for the same bits.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>

#include "teratron/kernels/attention/rope.h"
#include "teratron/kernels/attention/softmax.h"
#include "teratron/kernels/loss/cross_entropy.h"
#include "teratron/kernels/norm/norm.h"
#include "teratron/kernels/pointwise/activation.h"
#include "teratron/kernels/pointwise/dropout.h"
#include "teratron/kernels/pointwise/random_fill.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU on this machine";
    poison();
  }
  /// Leaves NaN in the memory that the next results will be allocated in.
  static void poison() {
    for (const int64_t n : {100, 20'000, 400'000, 8'000'000}) {
      std::vector<at::Tensor> blocks;
      for (int i = 0; i < 6; ++i) {
        blocks.push_back(
            at::full({n}, std::numeric_limits<float>::quiet_NaN(), at::device(at::kCUDA).dtype(at::kFloat)));
      }
    }
  }
};

at::Tensor gpu(const at::Tensor& x) {
  return x.defined() ? x.to(at::kCUDA) : x;
}

/// f32 on the GPU uses the hardware's exp and reciprocals.
double allowed(at::ScalarType type) {
  return type == at::kFloat ? 5e-6 : 1.2 * tolerance(type);
}

#define EXPECT_GPU(actual, expected, type) \
  EXPECT_LT(relative_error(actual, expected), allowed(type)) << at::toString(type)

struct NormCase {
  at::ScalarType type;
  int64_t rows, width;
  NormOptions options;
  bool extras;          // addends, and a gradient past the norm
  bool shift = extras;  // a bias of its own
};

/// Summing dx changes nothing else; the sum, taken before dx is rounded, is right to the rounding of its terms.
void check_sum_of_dx(const NormCase& c, const NormGradients& alone,
                     const std::function<NormGradients(const at::Tensor& place)>& summed) {
  const at::Tensor place = at::full({c.width}, 7.0, alone.dweight.options());
  const NormGradients g = summed(place), again = summed({});
  EXPECT_TRUE(g.dx_sum.is_same(place));
  EXPECT_TRUE(same_bits(g.dx_sum.cpu(), again.dx_sum.cpu()));
  EXPECT_LT(relative_error(g.dx, f64(alone.dx)), allowed(c.type));
  EXPECT_LT(relative_error(g.dweight, f64(alone.dweight)), 1e-5);
  const at::Tensor dx = f64(alone.dx), error = f64(g.dx_sum) - dx.sum(0);
  EXPECT_LT(error.norm().item<double>(), allowed(c.type) * dx.norm().item<double>());
}

void check_norm(const NormCase& c) {
  SCOPED_TRACE(fmt::format("{} [{}, {}] rms {} extras {}", at::toString(c.type), c.rows, c.width,
                           c.options.kind == NormKind::rms, c.extras));
  const auto rows = [&] { return randn({c.rows, c.width}, c.type); };
  const auto columns = [&](bool wanted) { return wanted ? randn({c.width}, c.type) : at::Tensor(); };
  const at::Tensor x = rows() + 0.5, residual = c.extras ? rows() : at::Tensor(),
                   added_bias = columns(c.extras);
  const NormParameters p{randn({c.width}, c.type), columns(c.shift)}, p_gpu{gpu(p.weight), gpu(p.bias)};
  const auto forward = [&] {
    return norm_forward(gpu(x), {gpu(residual), gpu(added_bias)}, p_gpu, c.options);
  };
  const NormOutput out = forward();
  const NormOutput again = forward();
  EXPECT_TRUE(same_bits(out.y.cpu(), again.y.cpu()));
  const NormParameters p64{f64(p.weight), f64(p.bias)};
  // From the stored sum on, so that its rounding does not count twice.
  const at::Tensor sum = f64(out.sum.cpu());
  if (c.extras) {
    EXPECT_GPU(out.sum, f64(x) + f64(residual) + f64(added_bias), c.type);
  }
  const NormOutput expected = norm_forward(sum, {}, p64, c.options);
  EXPECT_GPU(out.y, expected.y, c.type);

  const at::Tensor dy = rows(), dresidual = c.extras ? rows() : at::Tensor();
  const auto backward = [&] {
    return norm_backward(gpu(dy), gpu(dresidual), {out.sum, out.mean, out.rstd}, p_gpu, c.options);
  };
  const NormGradients g = backward(), g_again = backward();
  const NormGradients g64 =
      norm_backward(f64(dy), f64(dresidual), {sum, expected.mean, expected.rstd}, p64, c.options);
  const auto statistics = c.type == at::kDouble ? at::kDouble : at::kFloat;
  EXPECT_GPU(g.dx, g64.dx, c.type);
  EXPECT_GPU(g.dweight, g64.dweight, statistics);
  if (c.shift) {
    EXPECT_GPU(g.dbias, g64.dbias, statistics);
  }
  EXPECT_TRUE(same_bits(g.dx.cpu(), g_again.dx.cpu()));
  EXPECT_TRUE(same_bits(g.dweight.cpu(), g_again.dweight.cpu()));
  check_sum_of_dx(c, g, [&](const at::Tensor& place) {
    NormParameters summing = p_gpu;
    summing.dx_sum = SumInto{place};
    return norm_backward(gpu(dy), gpu(dresidual), {out.sum, out.mean, out.rstd}, summing, c.options);
  });
}

TEST_F(Gpu, Norm) {
  for (const auto type : float_types) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{3, 8},
                                      {700, 768},
                                      {65, 1000},
                                      {33, 1027},
                                      {130, 4096},
                                      {40, 6144},
                                      {20, 12288},
                                      {5000, 2048},
                                      {900, 8192},
                                      {6000, 768},  // more rows than blocks: the pipe goes round
                                      {3000, 4096},
                                      {700, 12288},
                                      {5, 40000}}) {
      check_norm({type, rows, width, {.kind = NormKind::layer, .eps = 1e-5, .zero_centered = true}, true});
      check_norm({type, rows, width, {.kind = NormKind::rms, .eps = 1e-6, .zero_centered = false}, false});
    }
  }
}

// Whole, with a rest and few, with more rows than warps.
TEST_F(Gpu, NormOfRowsThatWarpsTake) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const auto& [rows, width] :
         {std::pair<int64_t, int64_t>{1, 768}, {40, 520}, {2001, 760}, {9000, 768}}) {
      check_norm({type, rows, width, {.kind = NormKind::layer, .eps = 1e-5}, false, true});
      check_norm({type, rows, width, {.kind = NormKind::layer, .eps = 1e-5}, true});
      check_norm({type, rows, width, {.kind = NormKind::rms, .eps = 1e-6}, false});
    }
  }
}

TEST_F(Gpu, NormTakesF32Weights) {
  for (const int64_t width : {768, 2048}) {
    const at::Tensor x = randn({50, width}, at::kBFloat16), weight = at::randn({width});
    const NormOutput out = norm_forward(gpu(x), {}, {gpu(weight), {}}, {});
    EXPECT_GPU(out.y, norm_forward(f64(x), {}, {f64(weight), {}}, {}).y, at::kBFloat16);
  }
}

TEST_F(Gpu, Activations) {
  for (const Activation kind : {Activation::gelu, Activation::gelu_erf, Activation::squared_relu,
                                Activation::relu, Activation::silu, Activation::swiglu, Activation::geglu}) {
    for (const auto type : float_types) {
      for (const int64_t width : {16, 98, 4096}) {
        SCOPED_TRACE(fmt::format("kind {} width {}", static_cast<int>(kind), width));
        const at::Tensor x = randn({301, width}, type) * 2,
                         bias = width == 16 ? at::Tensor() : randn({width}, type);
        const at::Tensor y = activation_forward(gpu(x), gpu(bias), kind);
        const at::Tensor expected = activation_forward(f64(x), f64(bias), kind);
        EXPECT_GPU(y, expected, type);
        const at::Tensor dy = randn(expected.sizes(), type);
        EXPECT_GPU(activation_backward(gpu(dy), gpu(x), gpu(bias), kind),
                   activation_backward(f64(dy), f64(x), f64(bias), kind), type);
        const auto summed = [&] { return activation_backward_summed(gpu(dy), gpu(x), gpu(bias), kind); };
        const SummedGradient once = summed(),
                             exact = activation_backward_summed(f64(dy), f64(x), f64(bias), kind);
        EXPECT_GPU(once.dx, exact.dx, type);
        EXPECT_GPU(once.column_sum, exact.column_sum, type == at::kDouble ? at::kDouble : at::kFloat);
        EXPECT_TRUE(same_bits(once.column_sum, summed().column_sum));
      }
    }
  }
}

TEST_F(Gpu, ActivationsStayFinite) {
  const at::Tensor x = at::tensor({-1e30f, -1e4f, -100.f, 100.f, 1e4f, 1e18f});
  for (const Activation kind : {Activation::gelu, Activation::gelu_erf, Activation::silu}) {
    EXPECT_TRUE(at::allclose(activation_forward(gpu(x), {}, kind).cpu(), at::relu(x)))
        << static_cast<int>(kind);
  }
}

TEST_F(Gpu, ColumnSum) {
  for (const auto type : float_types) {
    for (const int64_t width : {8, 77, 3072}) {
      const at::Tensor x = randn({1111, width}, type);
      const at::Tensor sum = column_sum(gpu(x));
      EXPECT_GPU(sum, f64(x).sum(0), type == at::kDouble ? at::kDouble : at::kFloat);
      EXPECT_TRUE(same_bits(sum.cpu(), column_sum(gpu(x)).cpu()));
    }
  }
}

TEST_F(Gpu, Rope) {
  for (const auto type : float_types) {
    for (const RopeStyle style : {RopeStyle::half, RopeStyle::interleaved}) {
      for (const auto& [channels, rotated] :
           {std::pair<int64_t, int64_t>{128, 128}, {128, 32}, {64, 64}, {14, 10}}) {
        SCOPED_TRACE(fmt::format("{} of {} channels", rotated, channels));
        const at::Tensor qkv = randn({19, 2, 3, 6, channels}, type);
        const at::Tensor angle = at::rand({40, rotated / 2}, at::kDouble) * 6;
        const auto statistics = type == at::kDouble ? at::kDouble : at::kFloat;
        const RopeTable t{angle.cos().to(statistics), angle.sin().to(statistics)};
        const at::Tensor positions = at::randint(40, {19, 2}, at::kLong);
        at::Tensor expected = f64(qkv).clone();
        rope_(expected.narrow(3, 0, 5), {f64(t.cos), f64(t.sin)}, positions, {.style = style});
        at::Tensor device = gpu(qkv);
        const RopeTable device_table{gpu(t.cos), gpu(t.sin)};
        const at::Tensor copied =
            rope(device.narrow(3, 0, 5), device_table, gpu(positions), {.style = style});
        rope_(device.narrow(3, 0, 5), device_table, gpu(positions), {.style = style});
        EXPECT_GPU(device, expected, type);
        EXPECT_TRUE(at::equal(copied, device.narrow(3, 0, 5)));
        rope_(device.narrow(3, 0, 5), device_table, gpu(positions),
              {.style = style, .direction = RopeDirection::inverse});
        EXPECT_LT(relative_error(device, qkv), 2 * tolerance(type));
      }
    }
  }
}

TEST_F(Gpu, CrossEntropy) {
  for (const auto type : float_types) {
    for (const auto& [width, columns] :
         {std::pair<int64_t, int64_t>{50304, 50257}, {1001, 1001}, {64, 3}, {64, 0}}) {
      SCOPED_TRACE(fmt::format("{} of {} columns", columns, width));
      const at::Tensor logits = randn({37, width}, type) * 3;
      const at::Tensor targets = at::randint(2 * width, {37}, at::kLong);  // half of them on another rank
      const VocabRange range{.first = width / 2, .columns = columns};
      const auto actual = cross_entropy_statistics(gpu(logits), gpu(targets), range);
      const auto expected = cross_entropy_statistics(f64(logits), targets, range);
      const auto statistics = type == at::kDouble ? at::kDouble : at::kFloat;
      EXPECT_TRUE(at::equal(actual.max.cpu().to(at::kDouble), expected.max));
      EXPECT_TRUE(at::equal(actual.target_logit.cpu().to(at::kDouble), expected.target_logit));
      EXPECT_GPU(actual.sum_exp, expected.sum_exp, statistics);

      const at::Tensor max = at::full({37}, 5, statistics), sum = at::rand({37}).to(statistics) + 1;
      const at::Tensor scale = at::rand({37}).to(statistics);
      scale[5] = 0;
      at::Tensor device = gpu(logits), reference = f64(logits);
      cross_entropy_gradient_(device, {gpu(max), gpu(sum), gpu(targets), gpu(scale)}, range);
      cross_entropy_gradient_(reference, {f64(max), f64(sum), targets, f64(scale)}, range);
      EXPECT_GPU(device, reference, type);
    }
  }
}

TEST_F(Gpu, CrossEntropyWithGradient) {
  for (const auto& [width, columns] : {std::pair<int64_t, int64_t>{50304, 50257},
                                       {64, 64},
                                       {64, 3},
                                       {1001, 1001},      // not in packs
                                       {56320, 56320},    // the most of one block
                                       {56328, 56321},    // two blocks
                                       {131072, 131072},  // four
                                       {256000, 128004},  // eight; some of padding alone
                                       {450560, 450553},
                                       {450568, 450561}}) {  // too long
    SCOPED_TRACE(fmt::format("{} of {} columns", columns, width));
    const at::Tensor logits = randn({37, width}, at::kBFloat16) * 3;
    const at::Tensor targets = at::randint(columns, {37}, at::kLong);
    targets[3] = -1;
    targets[4] = columns;  // padding, or nothing
    targets[5] = columns - 1;
    logits[6].fill_(-3e4);
    logits[6][1] = 3e4;
    const VocabRange range{.first = 0, .columns = columns};
    const at::Tensor exact = f64(logits);
    const at::Tensor losses = cross_entropy_with_gradient_(exact, targets, range);
    const at::Tensor device = gpu(logits);
    const bool hopper = at::cuda::getCurrentDeviceProperties()->major == 9;
    EXPECT_EQ(has_cross_entropy_with_gradient(device), hopper && width % 8 == 0 && width <= 450560);
    EXPECT_GPU(cross_entropy_with_gradient_(device, gpu(targets), range), losses, at::kFloat);
    EXPECT_GPU(device, exact, at::kBFloat16);
    EXPECT_EQ(device.narrow(1, columns, width - columns).abs().sum().item<double>(), 0);
    const at::Tensor again = gpu(logits);
    cross_entropy_with_gradient_(again, gpu(targets), range);
    EXPECT_TRUE(at::equal(again, device));

    const at::Tensor scale = at::full({37}, 0.3, at::kFloat);
    scale[2] = 0;
    scale[7] = -0.15;
    device[2].fill_(NAN);
    const at::Tensor c = cross_entropy_scale_(device, gpu(scale));
    EXPECT_EQ(c.item<float>(), 0.3F);
    EXPECT_TRUE(at::equal(device[8], again[8]));
    EXPECT_GPU(f64(device) * f64(c), exact * f64(scale).unsqueeze(1), at::kBFloat16);
  }
}

TEST_F(Gpu, CrossEntropyShowsNumbersThatAreNone) {
  const at::Tensor logits = at::zeros({2, 64}, at::device(at::kCUDA).dtype(at::kBFloat16));
  logits[0][40] = NAN;
  const at::Tensor targets = at::zeros({2}, at::device(at::kCUDA).dtype(at::kLong));
  const at::Tensor losses = cross_entropy_with_gradient_(logits, targets, {.first = 0, .columns = 64});
  EXPECT_TRUE(losses[0].isnan().item<bool>() && losses[1].isfinite().item<bool>());
  EXPECT_TRUE(logits[0].isnan().all().item<bool>());
  const at::Tensor c =
      cross_entropy_scale_(logits, at::full({2}, INFINITY, at::device(at::kCUDA).dtype(at::kFloat)));
  EXPECT_TRUE(c.isinf().all().item<bool>());
}

TEST_F(Gpu, DropoutMasksAreThoseOfTheCpu) {
  for (const int64_t width : {96, 37}) {
    Dropout how{
        .p = 0.3, .key = {3, 4}, .where = {.rows = {}, .first_row = 9, .columns = 200, .first_column = 5}};
    const at::Tensor x = at::randn({501, width}), bias = at::randn({width}),
                     residual = at::randn({501, width});
    EXPECT_TRUE(at::equal(dropout(gpu(x), how).cpu(), dropout(x, how)));
    how.where.first_column = 8;
    EXPECT_TRUE(at::equal(dropout(gpu(x), how).cpu(), dropout(x, how)));
    EXPECT_LT(relative_error(bias_dropout_add(gpu(x), gpu(bias), gpu(residual), how),
                             bias_dropout_add(x, bias, residual, how)),
              1e-6);
    how.where.rows = at::randint(1'000'000'000'000, {501}, at::kLong);
    const at::Tensor y = dropout(x, how);
    how.where.rows = gpu(how.where.rows);
    EXPECT_TRUE(at::equal(dropout(gpu(x), how).cpu(), y));
    for (const auto type : {at::kBFloat16, at::kHalf, at::kDouble}) {
      how.where.rows = at::Tensor();
      const at::Tensor low = x.to(type);
      EXPECT_GPU(dropout(gpu(low), how), dropout(f64(low), how), type);
    }
  }
}

TEST_F(Gpu, Softmax) {
  for (const auto type : float_types) {
    for (const auto& [queries, keys] :
         {std::pair<int64_t, int64_t>{40, 64}, {33, 51}, {3, 2600}, {70, 24}, {2, 9000}}) {
      SCOPED_TRACE(fmt::format("{} x {}", queries, keys));
      const at::Tensor scores = randn({2, 3, queries, keys}, type) * 2, dy = randn(scores.sizes(), type);
      const at::Tensor mask = at::rand({2, 1, queries, keys}) < 0.3;
      mask.select(2, 1).fill_(true);
      const Dropout drop{.p = 0.2, .key = {8, 9}};
      const at::Tensor slopes = at::tensor({0.25, 0.0625, 0.0}, at::kDouble);
      for (const SoftmaxOptions& o : {SoftmaxOptions{.scale = 0.5},
                                      {.scale = 0.5, .causal = true},
                                      {.scale = 1, .mask = mask},
                                      {.scale = 0.5, .causal = true, .slopes = slopes},
                                      {.scale = 0.7, .causal = true, .mask = mask, .dropout = drop}}) {
        SoftmaxOptions device = o;
        device.mask = gpu(o.mask);
        if (o.slopes.defined()) device.slopes = gpu(o.slopes).to(type == at::kDouble ? type : at::kFloat);
        const SoftmaxOutput actual = softmax_forward(gpu(scores), device),
                            expected = softmax_forward(f64(scores), o);
        EXPECT_GPU(actual.probabilities, expected.probabilities, type);
        EXPECT_GPU(actual.y, expected.y, type);
        const at::Tensor p = actual.probabilities;
        EXPECT_GPU(softmax_backward(gpu(dy), p, device), softmax_backward(f64(dy), f64(p.cpu()), o), type);
      }
    }
  }
}

TEST_F(Gpu, RandomFillGivesTheBitsOfTheCpu) {
  for (const Distribution distribution : {Distribution::normal, Distribution::uniform}) {
    const RandomFill how{.key = {42, 7}, .distribution = distribution, .offset = 0.25, .scale = 0.02};
    for (const auto type : float_types) {
      at::Tensor host = at::full({77, 131}, 9, type), device = gpu(host);
      const std::vector<int64_t> global{1000, 301};
      const Box box{.start = {55, 3}, .size = {77, 100}};
      random_fill_(host.narrow(1, 20, 100), box, global, how);
      random_fill_(device.narrow(1, 20, 100), box, global, how);
      EXPECT_TRUE(same_bits(device.cpu(), host)) << at::toString(type);
    }
  }
}

}  // namespace
}  // namespace teratron
