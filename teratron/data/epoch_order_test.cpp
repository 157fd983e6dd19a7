#include "teratron/data/epoch_order.h"

#include <algorithm>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

#include "teratron/data/torch_randperm.h"

namespace teratron {
namespace {

std::vector<int64_t> items(const EpochOrder& order) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < order.size(); ++i) all.push_back(order.at(i));
  return all;
}

TEST(EpochOrder, EpochsFollowEachOther) {
  EXPECT_EQ(items(EpochOrder({.count = 3})), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(items(EpochOrder({.count = 3, .samples = 7})), (std::vector<int64_t>{0, 1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(items(EpochOrder({.count = 3, .samples = 2})), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(items(EpochOrder({.count = 0})), std::vector<int64_t>());
  std::vector<int64_t> expected;
  for (const uint64_t seed : {1234, 1235, 1236}) {
    for (const int64_t item : torch_randperm(10, seed)) expected.push_back(item);
  }
  expected.resize(25);
  const EpochOrder order({.count = 10, .samples = 25, .shuffle = 1234});
  EXPECT_EQ(items(order), expected);
  EXPECT_EQ(order.at(3), expected[3]) << "an epoch that is no longer kept";
}

// One that held 8 bytes per sample would need an exabyte.
TEST(EpochOrder, HoldsTwoEpochsHoweverManyThereAre) {
  constexpr int64_t samples = std::numeric_limits<int64_t>::max() / 64;
  const EpochOrder order({.count = 1000, .samples = samples, .shuffle = 7});
  EXPECT_EQ(order.size(), samples);
  const int64_t last = samples - 1;
  EXPECT_EQ(
      order.at(last),
      torch_randperm(1000, 7 + static_cast<uint64_t>(last / 1000)).at(static_cast<size_t>(last % 1000)));
}

TEST(EpochOrder, ThreadsReadDifferentEpochs) {
  const EpochOrder order({.count = 50, .samples = 400, .shuffle = 3});
  const std::vector<int64_t> expected = items(order);
  std::vector<std::vector<int64_t>> seen(4);
  {
    std::vector<std::jthread> threads;
    for (std::vector<int64_t>& mine : seen) threads.emplace_back([&] { mine = items(order); });
  }
  for (const std::vector<int64_t>& mine : seen) EXPECT_EQ(mine, expected);
}

}  // namespace
}  // namespace teratron
