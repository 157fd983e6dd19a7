#include "teratron/comm/nccl/symmetric_pool.h"

#include <gtest/gtest.h>

namespace teratron {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
const int one_stream = 0, another = 0;

TEST(SymmetricPool, RoundsToFewSizes) {
  EXPECT_EQ(SymmetricPool::round_size(0), kMiB);
  EXPECT_EQ(SymmetricPool::round_size(kMiB), kMiB);
  EXPECT_EQ(SymmetricPool::round_size(kMiB + 1), 2 * kMiB);
  EXPECT_EQ(SymmetricPool::round_size(65 * kMiB), 128 * kMiB);
  EXPECT_EQ(SymmetricPool::round_size(256 * kMiB), 256 * kMiB);
  EXPECT_EQ(SymmetricPool::round_size(256 * kMiB + 1), 258 * kMiB);
  EXPECT_EQ(SymmetricPool::round_size(16'001 * kMiB), 16'002 * kMiB);
}

TEST(SymmetricPool, AllocatesTheFirstFreeBufferInAnyOrderOfFrees) {
  for (const bool first_is_freed_first : {false, true}) {
    SymmetricPool pool;
    EXPECT_EQ(pool.allocate(kMiB, &one_stream), std::nullopt);
    const size_t a = pool.add(kMiB, &one_stream), b = pool.add(kMiB, &one_stream);
    EXPECT_EQ(pool.allocate(kMiB, &one_stream), std::nullopt);
    pool.free(first_is_freed_first ? a : b);
    pool.free(first_is_freed_first ? b : a);
    EXPECT_EQ(pool.allocate(kMiB, &one_stream), a);
    EXPECT_EQ(pool.allocate(kMiB, &one_stream), b);
    EXPECT_EQ(pool.allocate(kMiB, &one_stream), std::nullopt);
  }
}

TEST(SymmetricPool, MatchesSizeAndStream) {
  SymmetricPool pool;
  pool.free(pool.add(2 * kMiB, &one_stream));
  EXPECT_EQ(pool.allocate(kMiB, &one_stream), std::nullopt);
  EXPECT_EQ(pool.allocate(2 * kMiB, &another), std::nullopt);
  EXPECT_EQ(pool.allocate(2 * kMiB, &one_stream), 0);
}

}  // namespace
}  // namespace teratron
