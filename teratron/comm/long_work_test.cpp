#include "teratron/comm/long_work.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/comm/communicator.h"
#include "teratron/comm/stopped.h"
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
        run_without_timeout(group, [&](const std::stop_token&) {
          if (world.rank() == 1) std::this_thread::sleep_for(1500ms);
          ++finished;
        });
        EXPECT_EQ(finished, 3) << "it returns when all have finished";
        group.barrier();
      },
      400ms);
  EXPECT_EQ(fault, "no fault");
}

/// Ends when it is asked to; longer than any of these tests may take.
void work_until_stopped(const std::stop_token& stop) {
  for (int i = 0; i < 6000; ++i) {
    throw_if_stopped(stop);
    std::this_thread::sleep_for(10ms);
  }
  ADD_FAILURE() << "it is not asked to stop";
}

TEST(LongWork, ThrowsOnAllRanksWhatWentWrongOnOne) {
  std::atomic<int> told = 0;
  const std::string fault = fault_over_sockets(4, [&](World& world, Communicator& group) {
    try {
      run_without_timeout(group, [&](const std::stop_token& stop) {
        if (world.rank() == 2)
          throw data_error({.what = "the data are gone", .where = "a/b", .fix = "Find them"});
        if (world.rank() != 3) work_until_stopped(stop);  // rank 3 has nothing to do
      });
      ADD_FAILURE() << "rank " << world.rank() << " goes on";
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::data);
      EXPECT_STREQ(
          error.what(),
          data_error({.what = "the data are gone (rank 2)", .where = "a/b", .fix = "Find them"}).what());
      ++told;
    }
    group.barrier();  // the ranks still agree
  });
  EXPECT_EQ(told, 4);
  EXPECT_EQ(fault, "no fault");
}

TEST(LongWork, NamesAnErrorOfAllRanksOnce) {
  const std::string fault = fault_over_sockets(3, [&](World&, Communicator& group) {
    try {
      run_without_timeout(group,
                          [](const std::stop_token&) { throw Fault("no memory", ExitCode::out_of_memory); });
      ADD_FAILURE();
    } catch (const Fault& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::out_of_memory);
      EXPECT_STREQ(error.what(), "no memory");
    }
  });
  EXPECT_EQ(fault, "no fault");
}

// The work of the others ends when the death is known, not after its own time.
TEST(LongWork, EndsWhenARankDies) {
  const std::string fault = fault_over_sockets(3, [](World& world, Communicator& group) {
    if (world.rank() == 1) throw Fault("this rank dies");
    run_without_timeout(group, [&](const std::stop_token& stop) {
      if (world.rank() == 0) work_until_stopped(stop);
    });
  });
  EXPECT_NE(fault.find("this rank dies"), std::string::npos) << fault;
}

}  // namespace
}  // namespace teratron
