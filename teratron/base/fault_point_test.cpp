#include "teratron/base/fault_point.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

TEST(FaultPoint, DoesNothingUnlessArmed) {
  EXPECT_EQ(fault_point("base.anything"), 0);
}

TEST(FaultPoint, MatchesRankStepHitAndTimes) {
  const ScopedFaults faults("a@rank=1,step=3:errno=EIO;b@hit=2:errno=ENOSPC;c.*@times=1:errno=ESTALE");
  EXPECT_EQ(fault_point("a"), 0);
  set_fault_context(1, 3);
  EXPECT_EQ(fault_point("a"), EIO);
  int other_thread = -1;
  std::thread([&] { other_thread = fault_point("a"); }).join();
  EXPECT_EQ(other_thread, 0) << "the context is per thread";
  set_fault_context(0, 0);
  EXPECT_EQ(fault_point("b"), 0);
  EXPECT_EQ(fault_point("b"), ENOSPC);
  EXPECT_EQ(fault_point("b"), 0);
  EXPECT_EQ(fault_point("c.first"), ESTALE);
  EXPECT_EQ(fault_point("c.second"), 0);
}

TEST(FaultPoint, ThrowsAndFlipsBits) {
  const ScopedFaults faults("t:throw;f:bitflip=9");
  EXPECT_THROW(fault_point("t"), Fault);
  std::array<std::byte, 2> data = {};
  fault_point("f", data);
  EXPECT_EQ(data[0], std::byte{0});
  EXPECT_EQ(data[1], std::byte{2});
}

TEST(FaultPoint, KillsTheProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    arm_faults("die:kill");
    fault_point("die");
    std::_Exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

TEST(FaultPoint, RejectsInvalidSpecifications) {
  for (const char* text : {"a", ":kill", "a:explode", "a@rank:kill", "a@rank=x:kill", "a@colour=1:kill",
                           "a:errno=EWHAT", "a:delay=", "a@rank=-1:kill"}) {
    try {
      arm_faults(text);
      ADD_FAILURE() << text << " was accepted";
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::config);
      EXPECT_NE(std::string(error.what()).find("TERATRON_FAULT"), std::string::npos);
    }
  }
}

TEST(FaultPoint, RecordsHits) {
  const auto names = record_fault_points([] {
    fault_point("one");
    fault_point("two");
    fault_point("one");
  });
  EXPECT_EQ(names, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(fault_point("one"), 0);
}

}  // namespace
}  // namespace teratron
