// Kernels that do the work of several.
#include "teratron/kernels/attention/qkv.h"
#include "teratron/kernels/gemm/gemm.h"
#include "teratron/kernels/pointwise/embedding.h"
#include "teratron/testing/grad_sinks.h"
#include "teratron/testing/kernels.h"
#include "teratron/testing/linear_activation.h"

namespace teratron {
namespace {

TEST(LinearAdd, IsTheSum) {
  for (const auto type : float_types) {
    const at::Tensor x = randn({24, 40}, type), w = randn({16, 40}, type), residual = randn({24, 16}, type),
                     bias = randn({16}, type);
    const at::Tensor exact = f64(residual) + at::matmul(f64(x), f64(w).t());
    EXPECT_CLOSE(linear_add(x, w, {}, residual), exact, type);
    EXPECT_CLOSE(linear_add(x, w, bias, residual), exact + f64(bias), type);
  }
}

TEST(LinearActivation, IsProductAndActivation) {
  for (const auto type : float_types) {
    for (const Activation activation : activations) {
      check_linear_activation({at::kCPU, type, activation, 24, 16, 40});
    }
  }
}

TEST(Sums, GoWhereTheyAreWanted) {
  expect_sums_where_wanted(at::kCPU);
}

TEST(AddRows, AddsToWhatIsThere) {
  for (const auto type : float_types) {
    const auto sums = type == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor ids = at::tensor({3, 0, 3, 5, 3}, at::kLong), dy = randn({5, 8}, type),
                     sum = randn({6, 8}, sums), before = f64(sum).clone();
    add_rows_(sum, ids, dy);
    for (int64_t row = 0; row < 5; ++row) before[ids[row].item<int64_t>()] += f64(dy[row]);
    EXPECT_CLOSE(sum, before, sums);
  }
}

// Against autograd through the forward's views and rotation.
TEST(MergeQkv, IsTheAdjointOfTakingApart) {
  constexpr int64_t length = 5, batch = 3, groups = 2, width = 12;
  const at::Tensor positions = at::randint(9, {length, batch}, at::kLong);
  for (const int64_t queries : {1, 4}) {
    for (const int64_t rotated : {0, 4, 12}) {
      SCOPED_TRACE(fmt::format("{} queries, {} rotated channels", queries, rotated));
      const at::Tensor angle = at::randn({9, rotated / 2}, at::kDouble);
      const QkvRotation rotation{{angle.cos(), angle.sin()}, RopeStyle::half, positions};
      const at::Tensor qkv = randn({length, batch, groups, queries + 2, width}, at::kDouble).requires_grad_();
      at::Tensor loss = at::zeros({}, at::kDouble);
      const auto gradient_of = [&](const at::Tensor& part, bool turns) {
        const at::Tensor dy = randn(part.sizes(), at::kDouble);
        at::Tensor y = part;
        if (turns && rotated > 0) {
          const at::Tensor a = part.narrow(-1, 0, rotated / 2), b = part.narrow(-1, rotated / 2, rotated / 2);
          std::vector<int64_t> shape(part.dim(), 1);
          shape[0] = length, shape[1] = batch, shape.back() = rotated / 2;
          const at::Tensor at_place = angle.index({positions}).view(shape);
          y = at::cat({a * at_place.cos() - b * at_place.sin(), b * at_place.cos() + a * at_place.sin(),
                       part.narrow(-1, rotated, width - rotated)},
                      -1);
        }
        loss = loss + (y * dy).sum();
        return dy;
      };
      const QkvParts parts{gradient_of(qkv.narrow(3, 0, queries), true),
                           gradient_of(qkv.select(3, queries), true),
                           gradient_of(qkv.select(3, queries + 1), false)};
      loss.backward();
      const MergedQkv merged = merge_qkv(parts, rotated > 0 ? &rotation : nullptr, SumInto{});
      EXPECT_CLOSE(merged.qkv, qkv.grad(), at::kDouble);
      EXPECT_CLOSE(merged.column_sum, qkv.grad().flatten(0, 1).sum(0).view(-1), at::kDouble);
      EXPECT_FALSE(merge_qkv(parts, nullptr, std::nullopt).column_sum.defined());
      const at::Tensor whole = at::cat({parts.q, parts.k.unsqueeze(3), parts.v.unsqueeze(3)}, 3);
      const MergedQkv in_place = merge_qkv(parts_of(whole), rotated > 0 ? &rotation : nullptr, SumInto{});
      EXPECT_EQ(in_place.qkv.const_data_ptr(), whole.const_data_ptr());
      EXPECT_TRUE(in_place.qkv.equal(merged.qkv));
      EXPECT_TRUE(in_place.column_sum.equal(merged.column_sum));
    }
  }
}

TEST(MergeQkv, TakesWhatIsMergedAsItIs) {
  for (const int64_t queries : {1, 4}) {
    const at::Tensor whole = randn({5, 3, 2, queries + 2, 12}, at::kFloat);
    const MergedQkv merged = merge_qkv(parts_of(whole), nullptr, SumInto{});
    EXPECT_EQ(merged.qkv.const_data_ptr(), whole.const_data_ptr());
    EXPECT_TRUE(merged.qkv.equal(whole));
    EXPECT_CLOSE(merged.column_sum, f64(whole).flatten(0, 1).sum(0).view(-1), at::kFloat);
  }
}

TEST(Qkv, IsTurnedAfterItsProduct) {
  constexpr int64_t length = 4, batch = 3, groups = 2, per_group = 3, channels = 8;
  const at::Tensor x = randn({length * batch, 5}, at::kDouble), bias = randn({48}, at::kDouble),
                   w = randn({48, 5}, at::kDouble), angle = at::randn({9, 4}, at::kDouble),
                   positions = at::randint(9, {length, batch}, at::kLong);
  const QkvTurn turn{{{angle.cos(), angle.sin()}, RopeStyle::interleaved, positions}, per_group, channels};
  const at::Tensor y = linear_turned(x, w, bias, turn).view({length, batch, groups, per_group, channels});
  const at::Tensor plain = linear_forward(x, w, bias).view(y.sizes());
  const RopeOptions how{.style = RopeStyle::interleaved};
  EXPECT_CLOSE(y.narrow(3, 0, 2), rope(plain.narrow(3, 0, 2), turn.rotation.table, positions, how),
               at::kDouble);
  EXPECT_TRUE(y.select(3, 2).equal(plain.select(3, 2)));
  const QkvTurn of_nothing{{turn.rotation.table, turn.rotation.style, positions.narrow(1, 0, 0)}, 3, 8};
  EXPECT_EQ(linear_turned(x.narrow(0, 0, 0), w, bias, of_nothing).sizes(), at::IntArrayRef({0, 48}));
  const QkvTurn too_many{{turn.rotation.table, turn.rotation.style, positions}, 4, channels};
  EXPECT_DEATH(turn_qkv_(plain.view({12, 48}), too_many), "48 features in groups of 32");
}

// Views of one tensor that are not its parts in their order, and parts of which the last rows are missing.
TEST(MergeQkv, MergesWhatOnlyLooksMerged) {
  const at::Tensor whole = randn({5, 3, 2, 3, 12}, at::kFloat);
  const auto& [q, k, v] = parts_of(whole);
  const auto rows = [](const QkvParts& of, int64_t first, int64_t count) {
    return QkvParts{of.q.narrow(0, first, count), of.k.narrow(0, first, count), of.v.narrow(0, first, count)};
  };
  const QkvParts swapped{v.unsqueeze(3), k, q.select(3, 0)}, same{q, k, k}, copied{q.clone(), k, v};
  const QkvParts transposed = parts_of(whole.transpose(0, 1)), every_other = parts_of(whole.narrow(1, 0, 2));
  for (const QkvParts& parts : {swapped, same, copied, transposed, every_other}) {
    EXPECT_FALSE(whole_of(parts).defined());
    const at::Tensor expected = at::cat({parts.q, parts.k.unsqueeze(3), parts.v.unsqueeze(3)}, 3);
    EXPECT_TRUE(merge_qkv(parts, nullptr, std::nullopt).qkv.equal(expected));
  }
  EXPECT_TRUE(whole_of(rows(parts_of(whole), 1, 2)).equal(whole.narrow(0, 1, 2)));
}

}  // namespace
}  // namespace teratron
