#include "teratron/megatron/merge/merge.h"

#include <gtest/gtest.h>

namespace teratron {
namespace {

// Elements of one byte that hold their number in the file.
class Numbered final : public TensorSource {
 public:
  Numbered(std::vector<int64_t> shape, int64_t first)
      : TensorSource(Dtype::u8, std::move(shape)), first_(first) {}
  void read(int64_t begin, int64_t end, char* out) const override {
    for (int64_t i = begin; i < end; ++i) *out++ = static_cast<char>(first_ + i);
  }

 private:
  int64_t first_;
};

// Read at once, and again in pieces of every size, which must give the same.
std::vector<char> merge(const MegatronPart& part, const std::vector<int64_t>& firsts) {
  std::vector<TensorSourcePtr> ranks;
  for (const int64_t first : firsts) ranks.push_back(std::make_shared<Numbered>(part.shape, first));
  const TensorSourcePtr joined = merged(part, ranks);
  const std::vector<char> whole = read_all(*joined);
  for (int64_t piece = 1; piece < joined->numel(); ++piece) {
    std::vector<char> again(whole.size());
    for (int64_t begin = 0; begin < joined->numel(); begin += piece)
      joined->read(begin, std::min(begin + piece, joined->numel()), again.data() + begin);
    EXPECT_EQ(again, whole) << piece;
  }
  return whole;
}

TEST(MergeTest, PutsTheRowsOfEarlierVersionsInOurOrder) {
  const MegatronPart zero{
      .split = MegatronSplit::rows, .rows = MegatronRows::by_split, .channels = 3, .shape = {18}};
  EXPECT_EQ(merge(zero, {0}),
            (std::vector<char>{0, 1, 2, 6, 7, 8, 12, 13, 14, 3, 4, 5, 9, 10, 11, 15, 16, 17}));
  MegatronPart one = zero;
  one.rows = MegatronRows::splits_last;
  EXPECT_EQ(merge(one, {0}),
            (std::vector<char>{0, 3, 6, 1, 4, 7, 2, 5, 8, 9, 12, 15, 10, 13, 16, 11, 14, 17}));
  const MegatronPart kv{.split = MegatronSplit::rows,
                        .rows = MegatronRows::by_split,
                        .splits = 2,
                        .channels = 2,
                        .shape = {12}};
  EXPECT_EQ(merge(kv, {0}), (std::vector<char>{0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11}));
}

TEST(MergeTest, ReordersEachRankBeforeJoining) {
  const MegatronPart part{
      .split = MegatronSplit::rows, .rows = MegatronRows::by_split, .channels = 1, .shape = {6}};
  EXPECT_EQ(merge(part, {0, 10}), (std::vector<char>{0, 2, 4, 1, 3, 5, 10, 12, 14, 11, 13, 15}));
}

TEST(MergeTest, JoinsGatesBeforeUpsAndColumnsRowByRow) {
  const MegatronPart gated{
      .split = MegatronSplit::rows, .rows = MegatronRows::segmented, .shape = {4}, .segments = {4, 4}};
  EXPECT_EQ(merge(gated, {0, 10}), (std::vector<char>{0, 1, 10, 11, 2, 3, 12, 13}));
  const MegatronPart columns{.split = MegatronSplit::columns, .shape = {2, 2}};
  EXPECT_EQ(merge(columns, {0, 10}), (std::vector<char>{0, 1, 10, 11, 2, 3, 12, 13}));
  EXPECT_EQ(merged_shape(columns, 2), (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(merged_shape(gated, 2), (std::vector<int64_t>{8}));
}

TEST(MergeTest, JoinsSegmentsOfUnequalSizes) {
  const MegatronPart part{
      .split = MegatronSplit::rows, .rows = MegatronRows::segmented, .shape = {3, 1, 2}, .segments = {4, 2}};
  EXPECT_EQ(merge(part, {0, 10}), (std::vector<char>{0, 1, 2, 3, 10, 11, 12, 13, 4, 5, 14, 15}));
  EXPECT_EQ(merged_shape(part, 2), (std::vector<int64_t>{6, 1, 2}));
}

}  // namespace
}  // namespace teratron
