// What agreements of up to 4,096 ranks cost, counted (docs/scaling.md).
#include <gtest/gtest.h>

#include "teratron/comm/consensus.h"
#include "teratron/testing/scale/scale_costs.h"

namespace teratron {
namespace {

NamedValues settings(const std::string& odd) {
  NamedValues record;
  for (int i = 0; i < 300; ++i) record.emplace_back(fmt::format("a_setting_{}", i), std::to_string(i));
  record.back().second += odd;
  return record;
}

TEST(Scale, MessagesOfAgreementsGrowWithTheNumberOfRanksAndRoundsWithItsLogarithm) {
  expect_sweeps("gather", 1, [](HostGroup& group) { group.gather_bytes(std::string(256, 'x')); });
  expect_sweeps("broadcast", 1, [](HostGroup& group) { group.broadcast_bytes(std::string(256, 'x')); });
  expect_sweeps("all_true", 2, [](HostGroup& group) { EXPECT_FALSE(all_true(group, group.rank() != 3)); });
  expect_sweeps("all_reduce_min", 2, [](HostGroup& group) {
    EXPECT_EQ(all_reduce_min(group, 1.0 + static_cast<double>(group.rank())), 1.0);
  });
  expect_sweeps("first_nonempty", 2, [](HostGroup& group) {
    EXPECT_EQ(first_nonempty(group, group.rank() == 7 ? "seven" : ""), "seven");
  });
  expect_sweeps("find_differences", 3,
                [](HostGroup& group) { EXPECT_TRUE(find_differences(group, settings("")).empty()); });
  expect_sweeps("find_differences_that_differ", 4, [](HostGroup& group) {
    EXPECT_EQ(find_differences(group, settings(group.rank() == 5 ? "!" : "")),
              std::vector<std::string>{
                  fmt::format("a_setting_299: ranks 0-4, 6-{} have 299, rank 5 has 299!", group.size() - 1)});
  });
}

/// No rank receives more because there are more ranks, but for a message from each of log2(n) children.
TEST(Scale, WhatIsMergedOnTheWayDoesNotGrow) {
  const std::set<std::string> all = {"15 1", "15 6", "6 6"};
  const ScaleCosts costs = expect_sweeps("union_of", 2, [&](HostGroup& group) {
    EXPECT_EQ(union_of(group, {group.rank() % 2 == 0 ? "15 6" : "15 1", "6 6"}), all);
  });
  EXPECT_LT(costs.of_bytes, 1.05);
  EXPECT_LT(costs.of_most_bytes, 0.35);
}

}  // namespace
}  // namespace teratron
