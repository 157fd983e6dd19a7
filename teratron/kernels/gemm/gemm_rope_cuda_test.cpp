// Products of queries, keys and values with their rotation, against the CPU's f64 arithmetic on the same (rounded) inputs.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>

#include "teratron/kernels/gemm/gemm.h"
#include "teratron/kernels/gemm/gemm_activation_cuda.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

class GpuTurn : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU on this machine";
  }
};

struct Case {
  int64_t length, batch, groups, per_group, channels, k;
  RopeStyle style = RopeStyle::half;
  int64_t rotated = channels;
  bool ours = true;  // takes our kernel where there is one

  int64_t rows() const { return length * batch; }
  int64_t width() const { return groups * per_group * channels; }
};

QkvTurn on_gpu(const QkvTurn& turn) {
  const auto& [table, style, positions] = turn.rotation;
  const auto f32 = [](const at::Tensor& x) { return x.to(at::kCUDA, at::kFloat); };
  return {{{f32(table.cos), f32(table.sin)}, style, positions.to(at::kCUDA)}, turn.per_group, turn.channels};
}

void check(const Case& c, const at::Tensor& positions, bool has_bias) {
  SCOPED_TRACE(fmt::format("{} x {} tokens, {} groups of {} heads of {}, bias {}", c.length, c.batch,
                           c.groups, c.per_group, c.channels, has_bias));
  const at::Tensor x = randn({c.rows(), c.k}, at::kBFloat16), w = randn({c.width(), c.k}, at::kBFloat16),
                   bias = has_bias ? randn({c.width()}, at::kBFloat16) : at::Tensor();
  const at::Tensor angle = at::randn({c.length + 3, c.rotated / 2}).to(at::kDouble);
  const QkvTurn turn{{{angle.cos(), angle.sin()}, c.style, positions}, c.per_group, c.channels};
  const auto gpu = [](const at::Tensor& t) { return t.defined() ? t.to(at::kCUDA) : t; };
  if (at::cuda::getCurrentDeviceProperties()->major == 9) {
    const cuda::GemmActivationShape shape{c.rows(), c.width(), c.k, Activation::relu};
    EXPECT_EQ(
        c.ours && c.rotated == c.channels && c.style == RopeStyle::half,
        cuda::has_gemm_turn(shape, c.channels) && c.rotated == c.channels && c.style == RopeStyle::half);
  }
  const at::Tensor y = linear_turned(gpu(x), gpu(w), gpu(bias), on_gpu(turn));
  const at::Tensor expected = linear_turned(f64(x), f64(w), f64(bias), turn);
  EXPECT_LT(relative_error(y, expected), 2 * tolerance(at::kBFloat16));
  // The largest error, so that no head or row is turned by another's angles.
  EXPECT_LT((f64(y).cpu() - expected).abs().max().item<double>(), 0.02 * expected.abs().max().item<double>());
}

at::Tensor any_positions(const Case& c) {
  return at::randint(c.length + 3, {c.length, c.batch}, at::kLong);
}

TEST_F(GpuTurn, InOneKernel) {
  for (const bool bias : {false, true}) {
    for (const Case& c :
         {Case{1024, 2, 8, 3, 128, 1024}, Case{700, 3, 16, 3, 64, 1032}, Case{2001, 3, 5, 3, 64, 1024},
          Case{1500, 4, 1, 10, 128, 2048}, Case{1111, 3, 14, 3, 32, 1024}, Case{1024, 3, 4, 3, 256, 1024}}) {
      check(c, any_positions(c), bias);
    }
  }
  const Case c{1024, 2, 8, 3, 128, 1024};
  check(c, at::arange(c.length, at::kLong).unsqueeze(1).expand({c.length, c.batch}), true);
}

// Other rotations, short products, few tiles and heads that lie across tiles.
TEST_F(GpuTurn, InTwoKernels) {
  for (const Case& c : {Case{1024, 2, 8, 3, 128, 1024, RopeStyle::interleaved},
                        Case{1024, 2, 8, 3, 128, 1024, RopeStyle::half, 64},
                        Case{1024, 2, 8, 3, 128, 512, RopeStyle::half, 128, false},
                        Case{100, 2, 8, 3, 128, 1024, RopeStyle::half, 128, false},
                        Case{2048, 2, 8, 3, 96, 1024, RopeStyle::half, 96, false}}) {
    check(c, any_positions(c), true);
  }
}

}  // namespace
}  // namespace teratron
