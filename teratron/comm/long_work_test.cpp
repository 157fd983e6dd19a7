#include "teratron/comm/long_work.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/comm/communicator.h"
#include "teratron/testing/worlds.h"

namespace teratron {
namespace {

using namespace std::chrono_literals;

// Much longer than a collective waits for a rank.
TEST(LongWork, DoesNotTimeOut) {
  std::atomic<int> finished = 0;
  const std::string fault = fault_over_sockets(
      3,
      [&](World& world, Communicator& group) {
        run_without_timeout(group, [&] {
          if (world.rank() == 1) std::this_thread::sleep_for(1500ms);
          ++finished;
        });
        EXPECT_EQ(finished, 3) << "it returns when all have finished";
        group.barrier();
      },
      400ms);
  EXPECT_EQ(fault, "no fault");
}

TEST(LongWork, ThrowsOnTheRankWhoseWorkFailed) {
  std::atomic<int> failed = 0;
  const std::string fault = fault_over_sockets(3, [&](World& world, Communicator& group) {
    try {
      run_without_timeout(group, [&] {
        if (world.rank() == 2) throw Fault("the data are gone");
      });
    } catch (const Fault& error) {
      EXPECT_EQ(world.rank(), 2);
      EXPECT_STREQ(error.what(), "the data are gone");
      ++failed;
      throw;
    }
    group.barrier();
  });
  EXPECT_EQ(failed, 1);
  EXPECT_NE(fault.find("the data are gone"), std::string::npos) << fault;
}

TEST(LongWork, EndsWhenARankDies) {
  const std::string fault = fault_over_sockets(3, [](World& world, Communicator& group) {
    if (world.rank() == 1) throw Fault("this rank dies");
    run_without_timeout(group, [&] {
      if (world.rank() == 0) std::this_thread::sleep_for(300ms);
    });
  });
  EXPECT_NE(fault.find("this rank dies"), std::string::npos) << fault;
}

}  // namespace
}  // namespace teratron
