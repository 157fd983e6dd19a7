#include "teratron/ckpt/index_ranges.h"

#include <random>

#include <gtest/gtest.h>

namespace teratron {
namespace {

using Runs = std::vector<Run>;

TEST(Runs, OfTheUsualCuts) {
  EXPECT_EQ(runs_of(Shard::replicated({2, 3}), 0, 6), (Runs{{0, 0, 6}}));
  EXPECT_EQ(runs_of(Shard::replicated({}), 0, 1), (Runs{{0, 0, 1}})) << "a scalar";
  EXPECT_EQ(runs_of(Shard::cut({4, 3}, 0, 2, 1), 0, 6), (Runs{{6, 0, 6}}));
  EXPECT_EQ(runs_of(Shard::cut({2, 4}, 1, 2, 1), 0, 4), (Runs{{2, 0, 2}, {6, 2, 2}}));
  EXPECT_EQ(runs_of(Shard::cut_segments({8, 1}, 0, {4, 4}, 2, 1), 0, 4), (Runs{{2, 0, 2}, {6, 2, 2}}));
  EXPECT_EQ(runs_of(Shard::cut({2, 4}, 1, 2, 1), 1, 3), (Runs{{3, 0, 1}, {6, 1, 1}})) << "a flat range";
  EXPECT_TRUE(runs_of(Shard::cut({4, 3}, 0, 2, 1), 2, 2).empty());
}

TEST(Runs, LeaveOutPadding) {
  EXPECT_EQ(runs_of(Shard::cut_padded({5, 2}, 0, 8, 2, 1), 0, 8), (Runs{{8, 0, 2}}));
  EXPECT_TRUE(runs_of(Shard::cut_padded({5, 2}, 0, 16, 4, 3), 0, 8).empty());
  EXPECT_EQ(runs_of(Shard::cut_padded({2, 3}, 1, 4, 2, 1), 0, 4), (Runs{{2, 0, 1}, {5, 2, 1}}));
}

// Brute force over single elements.
TEST(Runs, IntersectSubtractAndMergeAgreeWithSets) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const auto random_runs = [&random] {
      Runs runs;
      int64_t at = 0;
      int64_t local = 0;
      while (at < 60) {
        at += random() % 5;
        const int64_t length = 1 + random() % 6;
        local += random() % 2;
        runs.push_back({at, local, length});
        at += length;
        local += length;
      }
      return runs;
    };
    const auto owner = [](const Runs& runs) {
      std::vector<int64_t> local(200, -1);
      for (const teratron::Run& run : runs) {
        for (int64_t k = 0; k < run.length; ++k) local[run.global + k] = run.local + k;
      }
      return local;
    };
    const Runs a = random_runs();
    const Runs b = random_runs();
    const auto in_a = owner(a);
    const auto in_b = owner(b);
    std::vector<std::pair<int64_t, int64_t>> expected;
    for (int64_t i = 0; i < 200; ++i) {
      if (in_a[i] >= 0 && in_b[i] >= 0) expected.emplace_back(in_a[i], in_b[i]);
    }
    std::vector<std::pair<int64_t, int64_t>> common;
    for (const CommonRun& run : intersect(a, b)) {
      for (int64_t k = 0; k < run.length; ++k) common.emplace_back(run.local + k, run.other + k);
    }
    EXPECT_EQ(common, expected);
    const Runs rest = subtract(a, b);
    const auto in_rest = owner(rest);
    for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(in_rest[i], in_b[i] >= 0 ? -1 : in_a[i]);
    const auto in_union = owner(merge_disjoint(b, rest));
    for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(in_union[i] >= 0, in_a[i] >= 0 || in_b[i] >= 0);
  }
}

}  // namespace
}  // namespace teratron
