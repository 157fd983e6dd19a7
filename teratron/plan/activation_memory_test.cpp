#include "teratron/plan/activation_memory.h"

#include <gtest/gtest.h>

namespace teratron {
namespace {

Operator op(double saved, double forward_peak, double backward_peak, int64_t unit = -1) {
  return {
      .saved = saved, .forward_peak = forward_peak, .backward_peak = backward_peak, .recompute_unit = unit};
}

TEST(ActivationMemory, FollowsForwardAndBackward) {
  // Forward: 5, then 10 saved + 30; backward: 10 + 25, then 12.
  const std::vector<Operator> two = {op(10, 5, 12), op(20, 30, 25)};
  EXPECT_EQ(activation_memory(two).saved, 30.0);
  EXPECT_EQ(activation_memory(two).peak, 40.0);
  const std::vector<Operator> last = {op(10, 5, 12), op(20, 20, 45)};
  EXPECT_EQ(activation_memory(last).peak, 55.0) << "what earlier operators saved, and the backward";
  EXPECT_EQ(activation_memory({}).peak, 0.0);
}

TEST(ActivationMemory, RecomputesUnitsOneAfterTheOther) {
  // Two units of two operators that would save 40, each after its saved input of 3.
  const std::vector<Operator> units = {op(3, 3, 3), op(10, 11, 12, 0), op(10, 11, 12, 0),
                                       op(3, 3, 3), op(10, 11, 12, 1), op(10, 11, 12, 1)};
  EXPECT_EQ(activation_memory(units).saved, 6.0);
  EXPECT_EQ(activation_memory(units).peak, 6.0 + 10.0 + 12.0) << "one unit at a time";
  std::vector<Operator> together = units;
  for (Operator& each : together) each.recompute_unit = each.saved > 3.0 ? 0 : -1;
  together.erase(together.begin() + 3);
  EXPECT_EQ(activation_memory(together).peak, 3.0 + 30.0 + 12.0);
}

// Five steps of 10 + 2, of which 2 of the first two stay; without offloading 60 are saved and 62 the peak.
TEST(ActivationMemory, MovesOffloadedStepsToTheHost) {
  const auto steps = [](int64_t offloaded) {
    std::vector<Operator> all;
    for (int64_t step = 0; step < 5; ++step) {
      for (const double saved : {10.0, 2.0}) {
        Operator one = op(saved, saved + 1, saved + 2);
        if (offloaded > 0) one.offload = OffloadStep{{5, offloaded}, step};
        one.kept = saved == 2.0 ? 2.0 : 0.0;
        all.push_back(one);
      }
    }
    return activation_memory(all);
  };
  EXPECT_EQ(steps(0).saved, 60.0);
  EXPECT_EQ(steps(0).host, 0.0);
  EXPECT_EQ(steps(0).peak, 62.0);
  EXPECT_EQ(steps(2).saved, 40.0);
  EXPECT_EQ(steps(2).host, 20.0);
  EXPECT_EQ(steps(2).peak, 42.0) << "copies are done before the last kept step ends";
  EXPECT_EQ(steps(5).saved, 10.0);
  EXPECT_EQ(steps(5).host, 50.0);
  EXPECT_EQ(steps(5).peak, 30.0 + 2.0) << "the last step's copy is in flight, and the one before returns";
}

}  // namespace
}  // namespace teratron
