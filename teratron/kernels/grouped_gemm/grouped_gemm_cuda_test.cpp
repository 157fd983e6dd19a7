// Grouped GEMMs against one fp64 GEMM per group.
#include <ATen/CPUGeneratorImpl.h>

#include "teratron/kernels/grouped_gemm/grouped_gemm.h"
#include "teratron/kernels/grouped_gemm/launchers.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

class GroupedGemmGpu : public Gpu {
 protected:
  void SetUp() override {
    Gpu::SetUp();
    if (!IsSkipped() && !cuda::has_grouped_gemm()) GTEST_SKIP() << "no kernel for this GPU";
  }
};

struct GroupedCase {
  std::vector<int64_t> counts;  // rows of each group
  int64_t out, in;
  int64_t rest = 0;     // rows of no group
  int64_t spacing = 0;  // elements between weights
};

struct GroupedOperands {
  at::Tensor x, dy, w, ends;
};

at::Tensor grouped_randn(at::IntArrayRef sizes) {
  return at::randn(sizes, at::device(at::kCUDA).dtype(at::kFloat)).to(at::kBFloat16);
}

// [G, O, I] of matrices `spacing` elements further apart than their size, between which NaN lies.
at::Tensor weight_stack(const GroupedCase& c, at::ScalarType dtype) {
  const int64_t groups = static_cast<int64_t>(c.counts.size()), step = c.out * c.in + c.spacing;
  const at::Tensor memory = at::full({groups, step}, std::nan(""), at::device(at::kCUDA).dtype(dtype));
  return memory.narrow(1, 0, c.out * c.in).unflatten(1, {c.out, c.in});
}

GroupedOperands grouped_operands(const GroupedCase& c) {
  const at::Tensor counts = at::tensor(c.counts, at::kLong);
  const int64_t used = counts.sum().item<int64_t>();
  const auto rows = [&](int64_t width) {
    const at::Tensor x = grouped_randn({used + c.rest, width});
    x.narrow(0, used, c.rest).fill_(std::nan(""));
    return x;
  };
  const at::Tensor w = weight_stack(c, at::kBFloat16);
  w.copy_(at::randn(w.sizes(), w.options().dtype(at::kFloat)) / std::sqrt(static_cast<double>(c.in)));
  return {.x = rows(c.in), .dy = rows(c.out), .w = w, .ends = counts.cumsum(0).to(at::kInt).to(at::kCUDA)};
}

// The group's rows in fp64.
at::Tensor group_rows(const at::Tensor& x, const GroupedCase& c, size_t group) {
  int64_t begin = 0;
  for (size_t g = 0; g < group; ++g) begin += c.counts[g];
  return x.narrow(0, begin, c.counts[group]).to(at::kDouble);
}

void check_grouped(const GroupedCase& c) {
  SCOPED_TRACE(fmt::format("{} groups of {}.. rows, {} to {}", c.counts.size(), c.counts[0], c.in, c.out));
  const auto [x, dy, w, ends] = grouped_operands(c);
  ASSERT_TRUE(fits_grouped_gemm(x, w) && fits_grouped_gemm(dy, w));
  const at::Tensor y = grouped_gemm_forward(x, w, ends), dx = grouped_gemm_input_gradient(dy, w, ends);
  const at::Tensor written = weight_stack(c, at::kFloat), added = weight_stack(c, at::kFloat);
  ASSERT_TRUE(fits_weight_gradient(added, dy, x));
  const at::Tensor before = at::randn(added.sizes(), added.options());
  added.copy_(before);
  grouped_gemm_weight_gradient_(written, dy, x, ends, /*add=*/false);
  grouped_gemm_weight_gradient_(added, dy, x, ends, /*add=*/true);
  for (size_t g = 0; g < c.counts.size(); ++g) {
    SCOPED_TRACE(fmt::format("group {} of {} rows", g, c.counts[g]));
    const auto index = static_cast<int64_t>(g);
    const at::Tensor w64 = w.select(0, index).to(at::kDouble), x64 = group_rows(x, c, g),
                     dy64 = group_rows(dy, c, g);
    if (c.counts[g] > 0) {
      ASSERT_LT(relative_error(group_rows(y, c, g), x64.mm(w64.t())), 4e-3);
      ASSERT_LT(relative_error(group_rows(dx, c, g), dy64.mm(w64)), 4e-3);
    }
    const at::Tensor dw = dy64.t().mm(x64);
    ASSERT_LT(relative_error(written.select(0, index), dw), 1e-5);
    ASSERT_LT(relative_error(added.select(0, index), dw + before.select(0, index)), 1e-5);
  }
  EXPECT_TRUE(at::equal(y.narrow(0, 0, y.size(0) - c.rest),
                        grouped_gemm_forward(x, w, ends).narrow(0, 0, y.size(0) - c.rest)));
  const at::Tensor again = at::empty_like(written);
  grouped_gemm_weight_gradient_(again, dy, x, ends, /*add=*/false);
  EXPECT_TRUE(at::equal(again, written));
}

// `groups` counts that sum to `rows`, of very different size.
std::vector<int64_t> drawn_counts(int64_t groups, int64_t rows, uint64_t seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor weight = at::randn({groups}, generator, at::kDouble).exp();
  const at::Tensor chosen = at::multinomial(weight, rows, /*replacement=*/true, generator);
  const at::Tensor counts = at::bincount(chosen, {}, groups);
  return {counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + groups};
}

TEST_F(GroupedGemmGpu, EqualFp64) {
  check_grouped({.counts = {128}, .out = 256, .in = 64});
  check_grouped({.counts = {256, 256}, .out = 256, .in = 128});
  check_grouped({.counts = {1}, .out = 8, .in = 8});
  check_grouped({.counts = {0, 1, 0, 0, 64, 65, 0}, .out = 264, .in = 72});
  check_grouped({.counts = {127, 128, 129, 255, 256, 257, 384, 385}, .out = 768, .in = 200, .rest = 77});
  check_grouped({.counts = {0, 0, 0}, .out = 128, .in = 256, .rest = 5});
  check_grouped({.counts = {31, 32, 33, 3000}, .out = 2312, .in = 520, .rest = 1, .spacing = 64});
  check_grouped({.counts = {700, 20, 1, 0, 900}, .out = 136, .in = 1032, .spacing = 8});
  check_grouped({.counts = drawn_counts(1024, 3000, 1), .out = 64, .in = 64, .rest = 200});
}

TEST_F(GroupedGemmGpu, EqualFp64OfExperts) {
  check_grouped({.counts = std::vector<int64_t>(16, 512), .out = 1536, .in = 2048});
  check_grouped({.counts = drawn_counts(16, 8192, 2), .out = 1536, .in = 2048});
  check_grouped({.counts = drawn_counts(64, 8192, 3), .out = 2048, .in = 768, .rest = 300});
  check_grouped({.counts = drawn_counts(4, 5000, 4), .out = 4096, .in = 1024});
}

TEST_F(GroupedGemmGpu, EqualFp64AtRandomSizes) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const at::Tensor sizes =
        at::randint(1, 90, {2}, at::make_generator<at::CPUGeneratorImpl>(seed), at::kLong);
    check_grouped({.counts = drawn_counts(1 + static_cast<int64_t>(seed * 7 % 40),
                                          1 + static_cast<int64_t>(seed * 331 % 4000), seed),
                   .out = 8 * sizes[0].item<int64_t>(),
                   .in = 8 * sizes[1].item<int64_t>(),
                   .rest = static_cast<int64_t>(seed % 5 * 40),
                   .spacing = static_cast<int64_t>(seed % 3 * 8)});
  }
}

TEST_F(GroupedGemmGpu, RefuseWhatTheyCannotMultiply) {
  const at::Tensor w = grouped_randn({4, 64, 128}), x = grouped_randn({100, 128});
  EXPECT_TRUE(fits_grouped_gemm(x, w));
  EXPECT_FALSE(fits_grouped_gemm(x.to(at::kHalf), w));
  EXPECT_FALSE(fits_grouped_gemm(x, w.transpose(1, 2)));
  EXPECT_FALSE(fits_grouped_gemm(x, w.narrow(2, 0, 120)));
  EXPECT_FALSE(fits_grouped_gemm(x, grouped_randn({4, 64, 132})));
  EXPECT_FALSE(fits_grouped_gemm(x.flatten().narrow(0, 1, 99 * 128).view({99, 128}), w));
  EXPECT_FALSE(fits_weight_gradient(w, grouped_randn({100, 64}), x));
}

}  // namespace
}  // namespace teratron
