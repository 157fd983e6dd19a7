// Buckets as arithmetic, and ranks that compare theirs.
#include "teratron/optim/bucket_layout.h"

#include <mutex>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "teratron/testing/counted_ranks.h"

namespace teratron {
namespace {

const BucketRules rules{.bucket_size = 150, .block = 64, .ranks = 2};

std::vector<std::string> texts_of(const std::vector<BucketItem>& items) {
  return describe_buckets(items, lay_out(items, rules));
}

TEST(BucketLayout, AlignsParametersAndPadsBuckets) {
  const std::vector<BucketItem> items = {{"d", 100}, {"c", 64}, {"b", 70, true}, {"a", 10}};
  const BucketLayout layout = lay_out(items, rules);
  EXPECT_EQ(layout.begins, (std::vector<int64_t>{0, 128, 256, 384}));
  ASSERT_EQ(layout.buckets.size(), 3U);
  EXPECT_EQ(layout.buckets[0].name, "bucket 0 (c to d)");
  EXPECT_EQ(layout.buckets[1].name, "bucket 1 (b)");
  EXPECT_EQ(layout.buckets[2].name, "bucket 2 (a)");
  EXPECT_EQ(layout.buckets[1].begin, 256);
  EXPECT_EQ(layout.buckets[1].elements, 128);
  EXPECT_TRUE(lay_out({}, rules).buckets.empty());
}

/// The ranks' slices of a bucket are equal, and none cuts a parameter.
TEST(BucketLayout, GivesWholeParametersToRanks) {
  const BucketRules whole{.bucket_size = 600, .block = 64, .ranks = 2, .whole = true};
  const std::vector<BucketItem> items = {{"e", 100}, {"d", 300}, {"c", 200}, {"b", 70, true}, {"a", 10}};
  const BucketLayout layout = lay_out(items, whole);
  // d, of 5 blocks, is rank 0's; c and e, of 4 and 2 blocks, are rank 1's.
  EXPECT_EQ(layout.begins, (std::vector<int64_t>{640, 0, 384, 768, 1024}));
  ASSERT_EQ(layout.buckets.size(), 3U);
  EXPECT_EQ(layout.buckets[0].elements, 2 * 384);
  EXPECT_EQ(layout.buckets[1].elements, 2 * 128);
  EXPECT_EQ(layout.buckets[2].elements, 2 * 64);
}

/// A bucket is filled until every rank could own its largest parameter.
TEST(BucketLayout, LimitsThePaddingOfWholeParameters) {
  for (const int64_t ranks : {1, 3, 8}) {
    std::vector<BucketItem> items;
    for (int64_t i = 0; i < 100; ++i) items.push_back({std::to_string(i), 64 * (1 + 37 * i % 50)});
    const BucketLayout layout =
        lay_out(items, {.bucket_size = 64, .block = 64, .ranks = ranks, .whole = true});
    for (size_t b = 0; b + 1 < layout.buckets.size(); ++b) {
      const auto& [first, end, begin, elements, name] = layout.buckets[b];
      int64_t used = 0;
      for (size_t i = first; i < end; ++i) {
        used += items[i].elements;
        const int64_t slice = elements / ranks, at = layout.begins[i] - begin;
        EXPECT_EQ(at / slice, (at + items[i].elements - 1) / slice) << name;
      }
      EXPECT_LE(elements, 2 * used) << name;
    }
    EXPECT_EQ(layout.buckets.size() > 1, true);
  }
}

/// What rank `rank` of three says of rank `odd` with these items, or "".
std::string difference(int64_t odd, const std::vector<BucketItem>& items, int64_t rank) {
  std::string text;
  run_counted_ranks(3, [&](CountedGroup& group) {
    std::vector<BucketItem> mine = {{"c", 200}, {"b", 100}, {"a", 100}};
    if (group.rank() == odd) mine = items;
    const std::string found = find_different_bucket(group, 10 * group.rank(), texts_of(mine));
    if (group.rank() == rank) text = found;
  });
  return text.substr(0, text.find(", hash")) + (text.ends_with("has nothing") ? ", rank 20 has nothing" : "");
}

TEST(BucketLayout, NamesTheFirstBucketThatDiffers) {
  EXPECT_EQ(difference(2, {{"c", 200}, {"b", 100}, {"a", 100}}, 2), "");
  EXPECT_EQ(difference(2, {{"c", 200}, {"b", 100}, {"x", 100}}, 2),
            "bucket 1: rank 0 has a to b of 2 parameters and 256 elements");
  EXPECT_EQ(difference(2, {{"c", 200}}, 2),
            "bucket 1: rank 0 has a to b of 2 parameters and 256 elements, rank 20 has nothing");
  EXPECT_EQ(difference(1, {{"b", 200}}, 2), "") << "each rank compares its own";
}

/// The names at both ends and the sizes are equal.
TEST(BucketLayout, SeesWhatIsInTheMiddle) {
  const auto three = [](const std::string& middle, int64_t first) {
    return texts_of({{"c", first}, {middle, 10}, {"a", 10}});
  };
  EXPECT_EQ(three("b", 10), three("b", 10));
  EXPECT_NE(three("b", 10), three("x", 10));
  EXPECT_NE(three("b", 10), three("b", 11));
}

}  // namespace
}  // namespace teratron
