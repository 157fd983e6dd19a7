// Casts and products of rows in groups against those of each group alone.
#include "teratron/kernels/fp8/grouped_fp8.h"

#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

constexpr int64_t rest_rows = 5;  // rows of no group
const std::vector<int64_t> group_counts = {3, 0, 130, 128, 1};

// [R, width] of which the rows of no group are NaN.
at::Tensor rows_of_groups(int64_t width) {
  int64_t used = 0;
  for (const int64_t count : group_counts) used += count;
  const at::Tensor x = randn({used + rest_rows, width});
  x.narrow(0, used, rest_rows).fill_(std::nan(""));
  return x;
}

Fp8Groups test_groups() {
  const at::Tensor ends = ends_of(group_counts);
  return make_fp8_groups(ends, ends[-1].item<int64_t>() + rest_rows);
}

at::Tensor fp8_values(const at::Tensor& fp8) {
  return fp8.to(at::kDouble);
}

TEST(GroupedFp8, TransposesGroupsIntoWholeSteps) {
  const at::Tensor x = rows_of_groups(32);
  const Fp8Groups groups = test_groups();
  EXPECT_EQ(groups.columns % 128, 0);
  EXPECT_TRUE(at::equal(groups.padded_ends_G, at::tensor({128, 128, 384, 512, 640}, at::kInt)));
  EXPECT_GE(groups.columns, 640);
  const at::Tensor amax = at::zeros({1});
  const Fp8Scale scale = compute_fp8_scale(x, Fp8Format::e4m3, &groups);
  const Fp8Matrix q = cast_to_fp8(x, {.scale = scale, .amax = amax, .groups = &groups});
  const int64_t used = x.size(0) - rest_rows;
  const at::Tensor exact = x.narrow(0, 0, used);
  EXPECT_EQ(amax.item<float>(), exact.abs().max().item<float>());
  EXPECT_EQ(scale.scale.item<float>(), 448.0F / amax.item<float>());
  const at::Tensor rows = (exact * scale.scale).to(at::kFloat8_e4m3fn).to(at::kDouble);
  EXPECT_TRUE(at::equal(fp8_values(q.rows).narrow(0, 0, used), rows));
  at::Tensor columns = at::zeros({32, groups.columns}, at::kDouble);
  int64_t to = 0;
  for (const TestGroup& group : groups_of(group_counts)) {
    columns.narrow(1, to, group.rows).copy_(rows.narrow(0, group.begin, group.rows).t());
    to += (group.rows + 127) / 128 * 128;
  }
  EXPECT_TRUE(at::equal(fp8_values(q.columns), columns));
}

TEST(GroupedFp8, NeedsNoRows) {
  const Fp8Groups groups = make_fp8_groups(at::zeros({3}, at::kInt), 0);
  const at::Tensor x = at::empty({0, 16});
  const Fp8Matrix q =
      cast_to_fp8(x, {.scale = compute_fp8_scale(x, Fp8Format::e4m3, &groups), .groups = &groups});
  const at::Tensor w = randn({3 * 32, 16});
  const Fp8Matrix weight = cast_to_fp8(w, {.scale = compute_fp8_scale(w, Fp8Format::e4m3)});
  EXPECT_EQ(fp8_grouped_forward(q, weight, groups, at::kFloat).sizes(), (at::IntArrayRef{0, 32}));
  at::Tensor sum = at::ones({3, 16, 16});
  fp8_grouped_weight_gradient_(sum, q, q, groups, /*add=*/true);
  EXPECT_TRUE(at::equal(sum, at::ones({3, 16, 16})));
  fp8_grouped_weight_gradient_(sum, q, q, groups, /*add=*/false);
  EXPECT_TRUE(at::equal(sum, at::zeros({3, 16, 16})));
}

TEST(GroupedFp8, ProductsEqualThoseOfEachGroup) {
  constexpr int64_t out = 48, in = 32;
  const Fp8Groups groups = test_groups();
  const auto count = static_cast<int64_t>(group_counts.size());
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    const auto cast = [&](const at::Tensor& x, Fp8Format to, const Fp8Groups* of) {
      return cast_to_fp8(x, {.format = to, .scale = compute_fp8_scale(x, to, of), .groups = of});
    };
    const Fp8Matrix x = cast(rows_of_groups(in), Fp8Format::e4m3, &groups),
                    dy = cast(rows_of_groups(out), format, &groups),
                    w = cast(randn({count * out, in}), Fp8Format::e4m3, nullptr);
    const auto rows_in = [](const Fp8Matrix& m, const TestGroup& group) {
      return fp8_values(m.rows.narrow(0, group.begin, group.rows)) * m.scale_inv.to(at::kDouble);
    };
    const at::Tensor w_GOI = (fp8_values(w.rows) * w.scale_inv.to(at::kDouble)).view({count, out, in});
    const at::Tensor y = fp8_grouped_forward(x, w, groups, at::kFloat),
                     dx = fp8_grouped_input_gradient(dy, w, groups, at::kFloat);
    at::Tensor written = at::full({count, out, in}, std::nan("")), added = randn({count, out, in});
    const at::Tensor before = added.clone();
    fp8_grouped_weight_gradient_(written, dy, x, groups, /*add=*/false);
    fp8_grouped_weight_gradient_(added, dy, x, groups, /*add=*/true);
    int64_t g = 0;
    for (const TestGroup& group : groups_of(group_counts)) {
      SCOPED_TRACE(fmt::format("group {}", g));
      const at::Tensor x64 = rows_in(x, group), dy64 = rows_in(dy, group), dw = dy64.t().mm(x64);
      EXPECT_LT(relative_error(y.narrow(0, group.begin, group.rows), x64.mm(w_GOI[g].t())), 1e-5);
      EXPECT_LT(relative_error(dx.narrow(0, group.begin, group.rows), dy64.mm(w_GOI[g])), 1e-5);
      EXPECT_LT(relative_error(written[g], dw), 1e-5);
      EXPECT_LT(relative_error(added[g], before[g] + dw), 1e-5);
      ++g;
    }
  }
}

}  // namespace
}  // namespace teratron
