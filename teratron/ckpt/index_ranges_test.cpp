#include "teratron/ckpt/index_ranges.h"

#include <random>

#include <gtest/gtest.h>

namespace teratron {
namespace {

using Ranges = std::vector<IndexRange>;

TEST(IndexRanges, OfTheUsualSplits) {
  EXPECT_EQ(index_ranges(Shard::replicated({2, 3}), 0, 6), (Ranges{{0, 0, 6}}));
  EXPECT_EQ(index_ranges(Shard::replicated({}), 0, 1), (Ranges{{0, 0, 1}})) << "a scalar";
  EXPECT_EQ(index_ranges(Shard::split({4, 3}, 0, 2, 1), 0, 6), (Ranges{{6, 0, 6}}));
  EXPECT_EQ(index_ranges(Shard::split({2, 4}, 1, 2, 1), 0, 4), (Ranges{{2, 0, 2}, {6, 2, 2}}));
  EXPECT_EQ(index_ranges(Shard::split_segments({8, 1}, 0, {4, 4}, 2, 1), 0, 4),
            (Ranges{{2, 0, 2}, {6, 2, 2}}));
  EXPECT_EQ(index_ranges(Shard::split({2, 4}, 1, 2, 1), 1, 3), (Ranges{{3, 0, 1}, {6, 1, 1}}))
      << "a flat range";
  EXPECT_TRUE(index_ranges(Shard::split({4, 3}, 0, 2, 1), 2, 2).empty());
}

// Two groups of 4 + 2 rows of two elements, each on two of four ranks.
TEST(IndexRanges, OfGroupsWithSharedRows) {
  const auto shard = [](int64_t index) { return Shard::split_groups({12, 2}, {4, 2}, 4, index); };
  EXPECT_EQ(shard(0).local_shape(), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(index_ranges(shard(0), 0, 8), (Ranges{{0, 0, 4}, {8, 4, 4}}));
  EXPECT_EQ(index_ranges(shard(1), 0, 8), (Ranges{{4, 0, 8}})) << "the last of the divided rows";
  EXPECT_EQ(index_ranges(shard(2), 0, 8), (Ranges{{12, 0, 4}, {20, 4, 4}}));
  EXPECT_EQ(index_ranges(shard(3), 2, 6), (Ranges{{18, 0, 4}})) << "a flat range";
  EXPECT_EQ(shard(2).shared_numel(), 4);
  EXPECT_TRUE(shard(2).counts_shared());
  EXPECT_FALSE(shard(3).counts_shared());
  EXPECT_EQ(index_ranges(Shard::split_groups({6}, {0, 6}, 2, 1), 0, 6), (Ranges{{0, 0, 6}})) << "only shared";
}

TEST(IndexRanges, LeaveOutPadding) {
  EXPECT_EQ(index_ranges(Shard::split_padded({5, 2}, 0, 8, 2, 1), 0, 8), (Ranges{{8, 0, 2}}));
  EXPECT_TRUE(index_ranges(Shard::split_padded({5, 2}, 0, 16, 4, 3), 0, 8).empty());
  EXPECT_EQ(index_ranges(Shard::split_padded({2, 3}, 1, 4, 2, 1), 0, 4), (Ranges{{2, 0, 1}, {5, 2, 1}}));
}

// Brute force over single elements.
TEST(IndexRanges, IntersectSubtractAndMergeAgreeWithSets) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const auto random_ranges = [&random] {
      Ranges ranges;
      int64_t at = 0;
      int64_t local = 0;
      while (at < 60) {
        at += random() % 5;
        const int64_t length = 1 + random() % 6;
        local += random() % 2;
        ranges.push_back({at, local, length});
        at += length;
        local += length;
      }
      return ranges;
    };
    const auto owner = [](const Ranges& ranges) {
      std::vector<int64_t> local(200, -1);
      for (const teratron::IndexRange& range : ranges) {
        for (int64_t k = 0; k < range.length; ++k) local[range.global + k] = range.local + k;
      }
      return local;
    };
    const Ranges a = random_ranges();
    const Ranges b = random_ranges();
    const auto in_a = owner(a);
    const auto in_b = owner(b);
    std::vector<std::pair<int64_t, int64_t>> expected;
    for (int64_t i = 0; i < 200; ++i) {
      if (in_a[i] >= 0 && in_b[i] >= 0) expected.emplace_back(in_a[i], in_b[i]);
    }
    std::vector<std::pair<int64_t, int64_t>> common;
    for (const Overlap& range : intersect(a, b)) {
      for (int64_t k = 0; k < range.length; ++k) common.emplace_back(range.local + k, range.other + k);
    }
    EXPECT_EQ(common, expected);
    const Ranges rest = subtract(a, b);
    const auto in_rest = owner(rest);
    for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(in_rest[i], in_b[i] >= 0 ? -1 : in_a[i]);
    const auto in_union = owner(merge_disjoint(b, rest));
    for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(in_union[i] >= 0, in_a[i] >= 0 || in_b[i] >= 0);
  }
}

}  // namespace
}  // namespace teratron
