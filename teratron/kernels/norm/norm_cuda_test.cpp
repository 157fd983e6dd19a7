// norm.h in several widths (vectorized, odd, larger than the registers hold), twice for the same bits.
#include "teratron/kernels/norm/norm.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

struct NormCase {
  at::ScalarType type;
  int64_t rows, width;
  NormOptions options;
  bool extras;          // addends, and a residual gradient
  bool shift = extras;  // a norm bias
};

/// Summing dx changes nothing else; the sum, taken before dx is rounded, is exact up to the rounding of its
/// terms.
void check_sum_of_dx(const NormCase& c, const NormGradients& alone,
                     const std::function<NormGradients(const at::Tensor& place)>& summed) {
  const at::Tensor place = at::full({c.width}, 7.0, alone.dweight.options());
  const NormGradients g = summed(place), again = summed({});
  EXPECT_TRUE(g.dx_sum.is_same(place));
  EXPECT_TRUE(same_bits(g.dx_sum.cpu(), again.dx_sum.cpu()));
  EXPECT_LT(relative_error(g.dx, f64(alone.dx)), gpu_tolerance(c.type));
  EXPECT_LT(relative_error(g.dweight, f64(alone.dweight)), 1e-5);
  const at::Tensor dx = f64(alone.dx), error = f64(g.dx_sum) - dx.sum(0);
  EXPECT_LT(error.norm().item<double>(), gpu_tolerance(c.type) * dx.norm().item<double>());
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
  // From the stored sum, so that its rounding does not count twice.
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
    summing.dx_sum_sink = GradSink{place};
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
                                      {6000, 768},  // more rows than blocks: the pipeline wraps around
                                      {3000, 4096},
                                      {700, 12288},
                                      {5, 40000}}) {
      check_norm({type, rows, width, {.kind = NormKind::layer, .eps = 1e-5, .zero_centered = true}, true});
      check_norm({type, rows, width, {.kind = NormKind::rms, .eps = 1e-6, .zero_centered = false}, false});
    }
  }
}

// Full and partial packs, few rows, and more rows than warps.
TEST_F(Gpu, NormByWarps) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const auto& [rows, width] :
         {std::pair<int64_t, int64_t>{1, 768}, {40, 520}, {2001, 760}, {9000, 768}}) {
      check_norm({type, rows, width, {.kind = NormKind::layer, .eps = 1e-5}, false, true});
      check_norm({type, rows, width, {.kind = NormKind::layer, .eps = 1e-5}, true});
      check_norm({type, rows, width, {.kind = NormKind::rms, .eps = 1e-6}, false});
    }
  }
}

TEST_F(Gpu, NormSupportsF32Weights) {
  for (const int64_t width : {768, 2048}) {
    const at::Tensor x = randn({50, width}, at::kBFloat16), weight = at::randn({width});
    const NormOutput out = norm_forward(gpu(x), {}, {gpu(weight), {}}, {});
    EXPECT_GPU(out.y, norm_forward(f64(x), {}, {f64(weight), {}}, {}).y, at::kBFloat16);
  }
}

}  // namespace
}  // namespace teratron
