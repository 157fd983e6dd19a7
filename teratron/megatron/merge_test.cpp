#include "teratron/megatron/merge.h"

#include <gtest/gtest.h>

namespace teratron {
namespace {

// Rows of one byte that hold their number in the file.
std::vector<char> numbered(size_t rows, int first = 0) {
  std::vector<char> bytes(rows);
  for (size_t i = 0; i < rows; ++i) bytes[i] = static_cast<char>(first + static_cast<int>(i));
  return bytes;
}

TEST(MergeTest, PutsTheRowsOfEarlierVersionsInOurOrder) {
  const MegatronPart zero{
      .split = MegatronSplit::rows, .rows = MegatronRows::by_split, .channels = 3, .shape = {18}};
  EXPECT_EQ(merge_parts(zero, {numbered(18)}, 1),
            (std::vector<char>{0, 1, 2, 6, 7, 8, 12, 13, 14, 3, 4, 5, 9, 10, 11, 15, 16, 17}));
  MegatronPart one = zero;
  one.rows = MegatronRows::splits_last;
  EXPECT_EQ(merge_parts(one, {numbered(18)}, 1),
            (std::vector<char>{0, 3, 6, 1, 4, 7, 2, 5, 8, 9, 12, 15, 10, 13, 16, 11, 14, 17}));
  const MegatronPart kv{.split = MegatronSplit::rows,
                        .rows = MegatronRows::by_split,
                        .splits = 2,
                        .channels = 2,
                        .shape = {12}};
  EXPECT_EQ(merge_parts(kv, {numbered(12)}, 1), (std::vector<char>{0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11}));
}

TEST(MergeTest, ReordersEachRankBeforeJoining) {
  const MegatronPart part{
      .split = MegatronSplit::rows, .rows = MegatronRows::by_split, .channels = 1, .shape = {6}};
  EXPECT_EQ(merge_parts(part, {numbered(6), numbered(6, 10)}, 1),
            (std::vector<char>{0, 2, 4, 1, 3, 5, 10, 12, 14, 11, 13, 15}));
}

TEST(MergeTest, JoinsGatesBeforeUpsAndColumnsRowByRow) {
  const MegatronPart gated{.split = MegatronSplit::rows, .rows = MegatronRows::gated, .shape = {4}};
  EXPECT_EQ(merge_parts(gated, {numbered(4), numbered(4, 10)}, 1),
            (std::vector<char>{0, 1, 10, 11, 2, 3, 12, 13}));
  const MegatronPart columns{.split = MegatronSplit::columns, .shape = {2, 2}};
  EXPECT_EQ(merge_parts(columns, {numbered(4), numbered(4, 10)}, 1),
            (std::vector<char>{0, 1, 10, 11, 2, 3, 12, 13}));
  EXPECT_EQ(merged_shape(columns, 2), (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(merged_shape(gated, 2), (std::vector<int64_t>{8}));
}

}  // namespace
}  // namespace teratron
