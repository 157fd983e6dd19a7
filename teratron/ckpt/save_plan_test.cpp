#include "teratron/ckpt/save_plan.h"

#include <gtest/gtest.h>

#include "teratron/testing/checkpoint_world.h"

namespace teratron {
namespace {

TEST(SavePlanTest, TheTensorsOfAllRanksAreKnownToAll) {
  run_host_group(5, [&](HostGroup& group) {
    std::map<std::string, TensorInfo> mine, expected;
    mine["shared"] = expected["shared"] = {Dtype::f32, {2, 3}};
    for (int64_t rank = 0; rank < 4; ++rank) expected[fmt::format("own.{}", rank)] = {Dtype::bf16, {rank}};
    if (group.rank() < 4) mine[fmt::format("own.{}", group.rank())] = {Dtype::bf16, {group.rank()}};
    EXPECT_EQ(tensors_of_all_ranks(mine, group), expected);
    EXPECT_TRUE(tensors_of_all_ranks({}, group).empty());
  });
}

TEST(SavePlanDeathTest, AnElementThatNoRankHoldsIsABug) {
  TestTensors tensors;
  tensors.add_range("weight", Shard::replicated({2, 5}), 0, 7);
  SingleHostGroup alone;
  EXPECT_DEATH(plan_save(tensors.list(), alone), "weight: no rank holds element 7");
}

}  // namespace
}  // namespace teratron
