// The mask of a row depends on its index in the sample, not on which rows a rank holds.
#include "teratron/nn/dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/nn/parallel_matmul.h"

namespace teratron {
namespace {

constexpr int64_t length = 8, samples = 3;

at::Tensor drop(const at::Tensor& x_SBH, const at::Tensor& rows_S,
                std::shared_ptr<DropoutRowIds> shared = nullptr) {
  return bias_dropout_add(x_SBH, nullptr, at::Tensor(),
                          {.rate = 0.4,
                           .key = {.seed = 3, .site = 5, .sample_ids_B = at::tensor({4, 1, 7}, at::kLong)},
                           .rows = {rows_S, length},
                           .row_ids = std::move(shared)});
}

TEST(Dropout, DependsOnTheRowsOfTheSample) {
  const at::Tensor x = at::rand({length, samples, 5}) + 1.0, whole = drop(x, at::arange(length, at::kLong));
  EXPECT_GT(whole.eq(0).sum().item<int64_t>(), 0);
  // The second of two context-parallel ranks (load-balanced halves), and a shard of it.
  const at::Tensor rows = at::tensor({2, 3, 4, 5}, at::kLong), zigzag = at::tensor({0, 1, 6, 7}, at::kLong);
  for (const at::Tensor& part : {rows, zigzag, zigzag.narrow(0, 2, 2), zigzag.flip(0)}) {
    EXPECT_TRUE(drop(x.index_select(0, part), part).equal(whole.index_select(0, part)));
  }
}

TEST(Dropout, OfSequenceShardsIsThatOfTheSequence) {
  const at::Tensor x = at::rand({length, samples, 5}) + 1.0, all = at::arange(length, at::kLong),
                   whole = drop(x, all);
  for (const int64_t rank : {0, 1}) {
    const TensorParallel parallel{.group = {.rank = rank, .size = 2}, .sequence_parallel = true};
    EXPECT_TRUE(
        drop(parallel.sequence_shard(x), parallel.sequence_shard(all)).equal(parallel.sequence_shard(whole)));
  }
}

TEST(Dropout, SharesRowIds) {
  const at::Tensor x = at::rand({length, samples, 5}) + 1.0, all = at::arange(length, at::kLong);
  const auto shared = std::make_shared<DropoutRowIds>();
  const at::Tensor first = drop(x, all, shared);
  EXPECT_TRUE(first.equal(drop(x, all)));
  EXPECT_EQ(shared->hidden.numel(), length * samples);
  EXPECT_TRUE(drop(x, at::Tensor(), shared).equal(first));  // computed once
}

}  // namespace
}  // namespace teratron
