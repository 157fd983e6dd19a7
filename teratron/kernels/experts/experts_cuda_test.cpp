// sum_rows.h and weighted_activation.h on the GPU
#include "teratron/kernels/experts/sum_rows.h"
#include "teratron/kernels/experts/weighted_activation.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

at::ScalarType wide_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

TEST_F(Gpu, SumsOfRows) {
  constexpr int64_t tokens = 77;
  for (const auto type : float_types) {
    for (const int64_t topk : {1, 2, 6, 8}) {
      for (const int64_t width : {8, 77, 4096}) {
        SCOPED_TRACE(fmt::format("{} rows of width {}", topk, width));
        const at::Tensor rows = at::randperm(tokens * topk, at::kLong).view({tokens, topk});
        const at::Tensor x = randn({tokens * topk, width}, type);
        const at::Tensor kept = at::rand({tokens, topk}) < 0.7;
        for (const at::Tensor& some : {at::Tensor(), kept}) {
          const at::Tensor exact = sum_rows(f64(x), rows, some, at::kDouble);
          EXPECT_GPU(sum_rows(gpu(x), gpu(rows), gpu(some), type), exact, type);
          const at::Tensor wide = sum_rows(gpu(x), gpu(rows), gpu(some), wide_type(type));
          EXPECT_EQ(wide.scalar_type(), wide_type(type));
          EXPECT_GPU(wide, exact, wide_type(type));
          EXPECT_TRUE(same_bits(wide, sum_rows(gpu(x), gpu(rows), gpu(some), wide_type(type))));
        }
      }
    }
  }
}

// Rows that are not kept may hold anything, and their indices too.
TEST_F(Gpu, SumsOfRowsReadOnlyWhatIsKept) {
  const at::Tensor kept = at::tensor({1, 0, 0, 0}, at::kLong).to(at::kBool).view({2, 2});
  const at::Tensor rows = at::tensor({0, 1 << 30, 1 << 30, 1}, at::kLong).view({2, 2});
  const at::Tensor x = at::stack({at::ones({64}), at::full({64}, std::nan(""))});
  const at::Tensor sums = sum_rows(gpu(x), gpu(rows), gpu(kept), at::kFloat).cpu();
  EXPECT_TRUE(at::equal(sums, at::stack({at::ones({64}), at::zeros({64})})));
  const at::Tensor none = at::empty({0, 64}, gpu(x).options());
  EXPECT_TRUE(at::equal(sum_rows(none, gpu(rows), gpu(kept.logical_and(rows < 0)), at::kFloat).cpu(),
                        at::zeros({2, 64})));
}

TEST_F(Gpu, WeightedActivations) {
  for (const Activation kind : activations) {
    for (const auto type : float_types) {
      for (const int64_t width : {16, 98, 4096}) {
        SCOPED_TRACE(fmt::format("kind {} width {}", static_cast<int>(kind), width));
        const at::Tensor z = randn({301, width}, type) * 2,
                         p = at::rand({301}, at::kDouble).to(wide_type(type));
        const at::Tensor h = weighted_activation_forward(gpu(z), gpu(p), kind);
        const at::Tensor exact_h = weighted_activation_forward(f64(z), f64(p), kind);
        EXPECT_GPU(h, exact_h, type);
        const at::Tensor dh = randn(exact_h.sizes(), type);
        const auto run = [&] { return weighted_activation_backward(gpu(dh).clone(), gpu(z), gpu(p), kind); };
        const WeightedActivationGradients actual = run(), exact = weighted_activation_backward(
                                                              f64(dh).clone(), f64(z), f64(p), kind);
        EXPECT_TRUE(same_bits(actual.h, h));
        EXPECT_GPU(actual.dz, exact.dz, type);
        EXPECT_GPU(actual.dp_R, exact.dp_R, wide_type(type));
        EXPECT_TRUE(same_bits(actual.dp_R, run().dp_R));
      }
    }
  }
}

}  // namespace
}  // namespace teratron
