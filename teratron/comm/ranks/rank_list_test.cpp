#include "teratron/comm/ranks/rank_list.h"

#include <gtest/gtest.h>

#include "teratron/comm/mesh/rank_grid.h"

namespace teratron {
namespace {

void expect_same(const std::vector<int64_t>& ranks) {
  const RankList list(ranks);
  EXPECT_EQ(list.all(), ranks);
  EXPECT_EQ(list.size(), std::ssize(ranks));
  EXPECT_EQ(list, RankList(ranks));
  for (int64_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(list[i], ranks[i]);
    EXPECT_EQ(list.find(ranks[i]), i);
  }
  EXPECT_EQ(list.find(1 << 20), std::nullopt);
}

TEST(RankList, IsTheListItWasMadeOf) {
  expect_same({5});
  expect_same({4, 2});
  expect_same({0, 1, 4, 5, 16, 17, 20, 21});
  expect_same({0, 1, 2, 3, 5});
  expect_same({0, 1, 2, 8, 9});
  expect_same({0, 1, 2, 8, 9, 11});
  expect_same({7, 3, 100, 0});
  EXPECT_NE(RankList({0, 1, 2}), RankList({0, 1, 3}));
  EXPECT_NE(RankList({0, 1}), RankList({0, 1, 2, 3}));
}

TEST(RankList, HoldsEveryGroupOfAMesh) {
  using enum Axis;
  const RankGrid grid({.tp = 2, .pp = 3, .cp = 2, .ep = 2, .etp = 1, .dp = 4, .order = "cp-dp-ep-tp-pp"}, 48);
  const std::vector<std::vector<Axis>> kinds = {{tp},     {cp, pp}, {dp, tp}, {pp}, {tp, cp, dp, pp},
                                                {ep, pp}, {edp}};
  for (const std::vector<Axis>& axes : kinds) {
    for (const std::vector<int64_t>& group : grid.groups(axes)) expect_same(group);
  }
}

}  // namespace
}  // namespace teratron
