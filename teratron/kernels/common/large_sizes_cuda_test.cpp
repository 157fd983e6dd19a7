// Kernels over more than 2^31 elements, and over more rows than blocks fit in gridDim.y: every row must be as
// in a launch over a few rows, and every column sum that of the launches over parts.
#include <cstdlib>

#include "teratron/kernels/fp8/activation_fp8.h"
#include "teratron/kernels/fp8/launchers.h"
#include "teratron/kernels/loss/cross_entropy.h"
#include "teratron/kernels/norm/launchers.h"
#include "teratron/kernels/norm/norm.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

constexpr int64_t max_grid_y = 65535;

// The grids are chosen without a GPU.
TEST(LargeSizes, RowsOfWorkspacesFitGrids) {
  cuda::NormShape norm{.rows = 1000 * 128, .width = 100, .dtype = Dtype::bf16, .weight_dtype = Dtype::bf16};
  EXPECT_EQ(cuda::norm_backward_workspace_rows(norm), 1000);
  norm.rows = max_grid_y * 128;
  EXPECT_EQ(cuda::norm_backward_workspace_rows(norm), max_grid_y);
  norm.rows = int64_t{64} * 131072;  // 64 heads of 100 channels over 131,072 tokens
  EXPECT_EQ(cuda::norm_backward_workspace_rows(norm), max_grid_y);
  cuda::ActivationShape activation{
      .rows = max_grid_y * 128, .width = 64, .dtype = Dtype::bf16, .activation = Activation::gelu};
  EXPECT_EQ(cuda::activation_fp8_workspace_rows(activation), max_grid_y);
  activation.rows += 2 * 128;
  EXPECT_EQ(cuda::activation_fp8_workspace_rows(activation), 2 * 32769) << "two layers of blocks";
}

/// Up to 20 GB.
class GpuLargeSizes : public Gpu {
 protected:
  void SetUp() override {
    if (std::getenv("TERATRON_LONG_TESTS") == nullptr) GTEST_SKIP() << "only with TERATRON_LONG_TESTS";
    Gpu::SetUp();
  }
};

at::Tensor random_rows(int64_t rows, int64_t width) {
  return at::empty({rows, width}, at::device(at::kCUDA).dtype(at::kBFloat16)).normal_();
}

constexpr int64_t some = 64;  // rows

/// Ranges of a few rows: the first, those around the limit of the old grid or of 32 bits, the last.
std::vector<int64_t> places(int64_t rows, int64_t limit) {
  return {0, std::min(limit, rows - some) / 16 * 16, rows - some};
}

at::Tensor rows_at(const at::Tensor& x, int64_t first) {
  return x.narrow(0, first, some);
}

TEST_F(GpuLargeSizes, NormBackward) {
  constexpr int64_t rows = int64_t{64} * 131072, width = 100, part = 131072;
  const at::Tensor x = random_rows(rows, width), dy = random_rows(rows, width);
  dy[rows - 1].mul_(1000);  // so that a sum without it is another
  const NormParameters p{random_rows(1, width)[0], random_rows(1, width)[0]};
  const NormOutput out = norm_forward(x, {}, p, {});
  const NormGradients g = norm_backward(dy, {}, {x, out.mean, out.rstd}, p, {});
  const auto f64_zeros = at::zeros({width}, at::device(at::kCUDA).dtype(at::kDouble));
  at::Tensor dweight = f64_zeros.clone(), dbias = f64_zeros.clone();
  for (int64_t first = 0; first < rows; first += part) {
    const auto of = [first](const at::Tensor& t) { return t.narrow(0, first, part); };
    EXPECT_TRUE(at::equal(norm_forward(of(x), {}, p, {}).y, of(out.y)));
    const NormGradients one = norm_backward(of(dy), {}, {of(x), of(out.mean), of(out.rstd)}, p, {});
    EXPECT_TRUE(at::equal(one.dx, of(g.dx)));
    dweight += one.dweight;
    dbias += one.dbias;
  }
  EXPECT_LT(relative_error(g.dweight, dweight), 1e-4);
  EXPECT_LT(relative_error(g.dbias, dbias), 1e-4);
}

TEST_F(GpuLargeSizes, CrossEntropy) {
  constexpr int64_t rows = 20'000, width = 131'072, at_2_31 = (int64_t{1} << 31) / width;
  static_assert(rows * width > int64_t{1} << 31);
  const VocabRange range{.first = 0, .columns = width - 72};
  const at::Tensor logits = random_rows(rows, width);
  const at::Tensor targets = at::randint(range.columns, {rows}, at::device(at::kCUDA).dtype(at::kLong));
  const at::Tensor scale = at::rand({rows}, at::device(at::kCUDA)) + 0.5;
  const CrossEntropyStatistics all = cross_entropy_statistics(logits, targets, range);
  at::Tensor gradient = logits.clone();
  cross_entropy_gradient_(gradient, {all.max, all.sum_exp, targets, scale}, range);
  at::Tensor fused = logits.clone();
  const at::Tensor losses = cross_entropy_with_gradient_(fused, targets, range);
  const at::Tensor unscaled = fused.narrow(0, rows - some, some).clone();
  const at::Tensor c = cross_entropy_scale_(fused, scale);
  for (const int64_t first : places(rows, at_2_31)) {
    SCOPED_TRACE(first);
    const at::Tensor z = rows_at(logits, first).clone(), t = rows_at(targets, first);
    const CrossEntropyStatistics few = cross_entropy_statistics(z, t, range);
    EXPECT_TRUE(at::equal(few.max, rows_at(all.max, first)));
    EXPECT_TRUE(at::equal(few.sum_exp, rows_at(all.sum_exp, first)));
    EXPECT_TRUE(at::equal(few.target_logit, rows_at(all.target_logit, first)));
    at::Tensor g = z.clone(), f = z.clone();
    cross_entropy_gradient_(g, {few.max, few.sum_exp, t, rows_at(scale, first)}, range);
    EXPECT_TRUE(at::equal(g, rows_at(gradient, first)));
    EXPECT_TRUE(at::equal(cross_entropy_with_gradient_(f, t, range), rows_at(losses, first)));
    if (first == rows - some) {
      EXPECT_TRUE(at::equal(f, unscaled));
    }
    // Scaled by scale / c.
    const at::Tensor expected = f64(f) * f64(rows_at(scale, first) / c).unsqueeze(1);
    EXPECT_LT(relative_error(rows_at(fused, first), expected), gpu_tolerance(at::kBFloat16));
  }
}

constexpr int64_t fp8_rows = (max_grid_y + 2) * 128, fp8_width = 64;

Fp8Scale fp8_scale() {
  const at::Tensor two = at::full({1}, 2.0F, at::device(at::kCUDA));
  return {two, 1 / two};
}

void expect_rows(const Fp8Matrix& all, const Fp8Matrix& few, int64_t first) {
  EXPECT_TRUE(at::equal(rows_at(all.rows, first).view(at::kByte), few.rows.view(at::kByte))) << first;
  EXPECT_TRUE(
      at::equal(all.columns.narrow(1, first, some).contiguous().view(at::kByte), few.columns.view(at::kByte)))
      << first;
}

TEST_F(GpuLargeSizes, Fp8Cast) {
  const at::Tensor x = random_rows(fp8_rows, fp8_width), amax = at::zeros({1}, at::device(at::kCUDA));
  x[fp8_rows - 1][fp8_width - 1] = 100;
  const Fp8Matrix all = cast_to_fp8(x, {.scale = fp8_scale(), .amax = amax});
  EXPECT_EQ(amax.item<float>(), 100);
  for (const int64_t first : places(fp8_rows, max_grid_y * 128))
    expect_rows(all, cast_to_fp8(rows_at(x, first), {.scale = fp8_scale()}), first);
}

TEST_F(GpuLargeSizes, Fp8Activation) {
  const at::Tensor x = random_rows(fp8_rows, fp8_width), dy = random_rows(fp8_rows, fp8_width);
  dy[fp8_rows - 1].mul_(1000);
  const Fp8Cast cast{.scale = fp8_scale()};
  const Fp8Matrix y = activation_forward_fp8(x, Activation::gelu, cast);
  const auto g = activation_backward_fp8(dy, x, Activation::gelu, cast, GradSink{});
  for (const int64_t first : places(fp8_rows, max_grid_y * 128)) {
    const at::Tensor few = rows_at(x, first);
    expect_rows(y, activation_forward_fp8(few, Activation::gelu, cast), first);
    expect_rows(g.dx,
                activation_backward_fp8(rows_at(dy, first), few, Activation::gelu, cast, std::nullopt).dx,
                first);
  }
  at::Tensor dbias = at::zeros({fp8_width}, at::device(at::kCUDA).dtype(at::kDouble));
  for (int64_t first = 0; first < fp8_rows; first += 1 << 20) {
    const int64_t part = std::min<int64_t>(1 << 20, fp8_rows - first);
    dbias += activation_backward_fp8(dy.narrow(0, first, part), x.narrow(0, first, part), Activation::gelu,
                                     cast, GradSink{})
                 .dbias;
  }
  EXPECT_LT(relative_error(g.dbias, dbias), 1e-4);
}

TEST_F(GpuLargeSizes, Fp8CrossEntropy) {
  const VocabRange range{.first = 0, .columns = fp8_width};
  const at::Tensor logits = random_rows(fp8_rows, fp8_width);
  const at::Tensor targets = at::randint(fp8_width, {fp8_rows}, at::device(at::kCUDA).dtype(at::kLong));
  const at::Tensor scale = at::ones({fp8_rows}, at::device(at::kCUDA));
  const CrossEntropyStatistics s = cross_entropy_statistics(logits, targets, range);
  const Fp8Cast cast{.scale = fp8_scale()};
  const Fp8Matrix all = cross_entropy_gradient_fp8(logits, {s.max, s.sum_exp, targets, scale}, range, cast);
  for (const int64_t first : places(fp8_rows, max_grid_y * 128)) {
    const CrossEntropySaved few{rows_at(s.max, first), rows_at(s.sum_exp, first), rows_at(targets, first),
                                rows_at(scale, first)};
    expect_rows(all, cross_entropy_gradient_fp8(rows_at(logits, first), few, range, cast), first);
  }
}

}  // namespace
}  // namespace teratron
