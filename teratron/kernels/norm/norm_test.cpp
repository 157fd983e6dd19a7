#include "teratron/kernels/norm/norm.h"

#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

at::Tensor reference(const at::Tensor& h, const at::Tensor& weight, const at::Tensor& bias,
                     const NormOptions& o) {
  const at::Tensor centred = o.kind == NormKind::rms ? h : h - h.mean(-1, true);
  const at::Tensor xhat = centred * at::rsqrt((centred * centred).mean(-1, true) + o.eps);
  const at::Tensor y = xhat * (o.zero_centered ? weight + 1 : weight);
  return bias.defined() ? y + bias : y;
}

struct Case {
  NormOptions options;
  at::ScalarType type;
  int64_t width;
  bool extras;  // bias, residual, added bias, dresidual
};

void check(const Case& c) {
  SCOPED_TRACE(fmt::format("{} width {} rms {} zero-centred {}", at::toString(c.type), c.width,
                           c.options.kind == NormKind::rms, c.options.zero_centered));
  const at::Tensor x = randn({7, 3, c.width}, c.type) + 0.5;
  const NormParameters p{randn({c.width}, c.type), c.extras ? randn({c.width}, c.type) : at::Tensor()};
  const NormAddends added{c.extras ? randn({7, 3, c.width}, c.type) : at::Tensor(),
                          c.extras ? randn({c.width}, c.type) : at::Tensor()};
  const NormOutput out = norm_forward(x, added, p, c.options);
  at::Tensor sum = f64(x);
  if (c.extras) sum = sum + f64(added.bias) + f64(added.residual);
  EXPECT_CLOSE(out.sum, sum, c.type);

  const at::Tensor h = leaf(out.sum), weight = leaf(p.weight);
  const at::Tensor bias = p.bias.defined() ? leaf(p.bias) : at::Tensor();
  const at::Tensor y = reference(h, weight, bias, c.options);
  if (c.width > 1) {
    EXPECT_CLOSE(out.y, y, c.type);
  } else {
    // All rows of a single column are +-1 times the weight, which the bias may nearly cancel.
    const at::Tensor added_bias = bias.defined() ? bias.expand_as(y) : at::zeros_like(y);
    const double terms = ((y - added_bias).abs() + added_bias.abs()).norm().item<double>();
    EXPECT_LE((f64(out.y) - y).norm().item<double>(), tolerance(c.type) * terms);
  }

  const at::Tensor dy = randn({7, 3, c.width}, c.type);
  const at::Tensor dresidual = c.extras ? randn({7, 3, c.width}, c.type) : at::Tensor();
  y.backward(f64(dy));
  const NormGradients g = norm_backward(dy, dresidual, {out.sum, out.mean, out.rstd}, p, c.options);
  const at::Tensor dx = c.extras ? h.grad() + f64(dresidual) : h.grad();
  // A single column is its own mean: the gradient is zero up to the cancellation of two equal numbers.
  if (c.width > 1) {
    EXPECT_CLOSE(g.dx, dx, c.type);
  }
  const auto statistics = c.type == at::kDouble ? at::kDouble : at::kFloat;
  EXPECT_EQ(g.dweight.scalar_type(), statistics);
  if (c.width > 1) {
    EXPECT_CLOSE(g.dweight, weight.grad(), statistics);
  }
  ASSERT_EQ(g.dbias.defined(), c.extras);
  if (c.extras) {
    // Relative to the size of its terms: a single column's sum may nearly cancel.
    const double error = (f64(g.dbias) - bias.grad()).norm().item<double>();
    EXPECT_LT(error, tolerance(statistics) * f64(dy).norm().item<double>());
  }
  NormParameters summing = p;
  summing.dx_sum_sink.emplace();
  const NormGradients summed =
      norm_backward(dy, dresidual, {out.sum, out.mean, out.rstd}, summing, c.options);
  EXPECT_FALSE(g.dx_sum.defined());
  EXPECT_TRUE(same_bits(summed.dx, g.dx));
  EXPECT_TRUE(same_bits(summed.dx_sum, column_sum(g.dx)));
}

TEST(Norm, MatchesAutograd) {
  for (const auto type : float_types) {
    for (const int64_t width : {1, 5, 64, 1027}) {
      for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
        check({.options = {.kind = kind, .eps = 1e-5, .zero_centered = false},
               .type = type,
               .width = width,
               .extras = false});
        check({.options = {.kind = kind, .eps = 1e-5, .zero_centered = true},
               .type = type,
               .width = width,
               .extras = true});
      }
    }
  }
}

TEST(Norm, LargeMeanKeepsItsVariance) {
  const at::Tensor x = at::randn({4, 512}) + 1000;
  const NormParameters p{at::ones({512}), at::zeros({512})};
  const NormOutput out = norm_forward(x, {}, p, {});
  EXPECT_LT(relative_error(out.y, reference(f64(x), f64(p.weight), {}, {})), 1e-4);
}

TEST(Norm, SupportsF32WeightsWithBf16Rows) {
  const at::Tensor x = randn({6, 48}, at::kBFloat16), weight = at::randn({48});
  const NormOutput out = norm_forward(x, {}, {weight, {}}, {});
  EXPECT_CLOSE(out.y, reference(f64(x), f64(weight), {}, {}), at::kBFloat16);
}

TEST(Norm, EpsilonIsInsideTheRoot) {
  const NormOutput out =
      norm_forward(at::zeros({1, 4}), {}, {at::ones({4}), {}}, {.kind = NormKind::rms, .eps = 0.25});
  EXPECT_EQ(out.rstd.item<float>(), 2.0f);
}

TEST(Norm, BackwardIsIndependentOfThreadCount) {
  const at::Tensor x = at::randn({500, 96}), dy = at::randn({500, 96});
  const NormParameters p{at::randn({96}), at::randn({96})};
  const NormOutput out = norm_forward(x, {}, p, {});
  const auto run = [&] { return norm_backward(dy, {}, {out.sum, out.mean, out.rstd}, p, {}); };
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const NormGradients one = run();
  at::set_num_threads(3);
  const NormGradients three = run();
  at::set_num_threads(threads);
  EXPECT_TRUE(same_bits(one.dx, three.dx));
  EXPECT_TRUE(same_bits(one.dweight, three.dweight));
  EXPECT_TRUE(same_bits(one.dbias, three.dbias));
}

TEST(Norm, ZeroRowsReturnZeroGradients) {
  const at::Tensor x = at::empty({0, 8});
  NormParameters p{at::ones({8}), at::zeros({8})};
  p.dx_sum_sink.emplace();
  const NormOutput out = norm_forward(x, {}, p, {});
  const NormGradients g = norm_backward(x, {}, {out.sum, out.mean, out.rstd}, p, {});
  EXPECT_EQ(g.dweight.abs().sum().item<float>(), 0);
  EXPECT_TRUE(g.dx_sum.equal(at::zeros({8})));
}

}  // namespace
}  // namespace teratron
