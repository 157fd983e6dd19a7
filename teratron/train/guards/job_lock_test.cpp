#include "teratron/train/guards/job_lock.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/train/guards/signals.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

class Fault24JobLock : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / ("job_lock_test." + random_hex(12));
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  void leave_lock(const std::string& host, int64_t pid) const {
    std::ofstream(directory_ / "run.lock")
        << nlohmann::json{{"host", host}, {"pid", pid}, {"started", "2026-01-31 12:00:00"}};
  }
  static std::string this_host() {
    char name[256] = {};
    gethostname(name, sizeof(name) - 1);
    return name;
  }
  std::string takeover_notice() const {
    testing::internal::CaptureStderr();
    {
      const JobLock lock(directory_, options_);
    }
    return testing::internal::GetCapturedStderr();
  }

  fs::path directory_;
  JobLockOptions options_ = {.run_id = "a1", .heartbeat = milliseconds(20), .watch = milliseconds(300)};
};

TEST_F(Fault24JobLock, SecondJobIsRejectedWithTheHolder) {
  {
    const JobLock lock(directory_, options_);
    EXPECT_TRUE(fs::exists(lock.path()));
    try {
      const JobLock second(directory_, options_);
      FAIL() << "two jobs hold one directory";
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::config);
      const std::string text = error.what();
      EXPECT_NE(text.find(std::to_string(getpid())), std::string::npos) << text;
      EXPECT_NE(text.find(this_host()), std::string::npos) << text;
      EXPECT_NE(text.find(" since 20"), std::string::npos) << text;
    }
    EXPECT_TRUE(fs::exists(lock.path())) << "the rejected job must leave the holder's file";
  }
  EXPECT_FALSE(fs::exists(directory_ / "run.lock"));
  EXPECT_NO_THROW(JobLock(directory_, options_));
}

TEST_F(Fault24JobLock, LockOfAKilledJobIsTakenOver) {
  const pid_t child = fork();
  if (child == 0) {
    const JobLock lock(directory_, options_);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_TRUE(fs::exists(directory_ / "run.lock"));
  EXPECT_NE(takeover_notice().find("taking over the run from process " + std::to_string(child)),
            std::string::npos);
}

TEST_F(Fault24JobLock, OtherHostIsWatchedForItsHeartbeat) {
  leave_lock("elsewhere", 1);
  EXPECT_NE(takeover_notice().find("on host elsewhere"), std::string::npos) << "silent: stale";

  leave_lock("elsewhere", 1);
  std::atomic<bool> stop = false;
  std::thread holder([&] {
    while (!stop) {
      fs::last_write_time(directory_ / "run.lock", fs::file_time_type::clock::now());
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  EXPECT_THROW(JobLock(directory_, options_), UserError);
  stop = true;
  holder.join();
}

TEST_F(Fault24JobLock, HeartbeatMovesTheTimeStamp) {
  const JobLock lock(directory_, options_);
  const auto before = fs::last_write_time(lock.path());
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_GT(fs::last_write_time(lock.path()), before);
}

TEST_F(Fault24JobLock, HalfWrittenFileHasNoHolder) {
  std::ofstream(directory_ / "run.lock") << "{\"host\": \"els";
  EXPECT_NO_THROW(JobLock(directory_, options_));
}

TEST_F(Fault24JobLock, MissingDirectoryIsRejected) {
  EXPECT_THROW(JobLock(directory_ / "missing", options_), UserError);
}

TEST(Fault4Signals, FirstSignalSetsTheFlagAndHandlersAreRestored) {
  {
    const StopSignals signals;
    EXPECT_EQ(signals.received(), 0);
    raise(SIGTERM);
    EXPECT_EQ(signals.received(), SIGTERM);
  }
  struct sigaction now{};
  sigaction(SIGTERM, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
  const StopSignals again;
  EXPECT_EQ(again.received(), 0) << "an old signal does not stop the next run";
  raise(SIGINT);
  EXPECT_EQ(again.received(), SIGINT);
}

TEST(Fault4Signals, SecondSignalExitsImmediately) {
  const auto twice = [](int first, int second) {
    const StopSignals signals;
    raise(first);
    raise(second);
  };
  EXPECT_EXIT(twice(SIGTERM, SIGTERM), testing::ExitedWithCode(128 + SIGTERM), "");
  EXPECT_EXIT(twice(SIGTERM, SIGINT), testing::ExitedWithCode(128 + SIGINT), "");
}

TEST(Fault4Signals, OneThatIsNotAnsweredEndsTheProcess) {
  const auto stuck = [] {
    StopSignals signals;
    signals.end_unanswered([](int signal) { _exit(128 + signal); }, milliseconds(40));
    raise(SIGTERM);
    std::this_thread::sleep_for(std::chrono::seconds(20));
  };
  EXPECT_EXIT(stuck(), testing::ExitedWithCode(128 + SIGTERM), "");
}

TEST(Fault4Signals, AHangupAfterTheEndIsIgnored) {
  const auto end = [](int second) {
    signal(SIGHUP, SIG_DFL);
    {
      const StopSignals signals;
      raise(SIGHUP);
    }
    raise(second);
    _exit(75);
  };
  EXPECT_EXIT(end(SIGHUP), testing::ExitedWithCode(75), "");
  EXPECT_EXIT(end(SIGTERM), testing::KilledBySignal(SIGTERM), "");
}

TEST(Fault4Signals, AStepAndASaveHaveTheirTime) {
  std::atomic<int> ended = 0;
  StopSignals signals;
  signals.end_unanswered([&ended](int signal) { ended = signal; }, milliseconds(20));
  std::this_thread::sleep_for(milliseconds(60));
  EXPECT_EQ(ended, 0) << "no signal";
  {
    const StopSignals::Unhurried save(signals);
    raise(SIGINT);
    std::this_thread::sleep_for(milliseconds(100));
    EXPECT_EQ(ended, 0) << "a save";
    signals.step_took(3.0);
  }
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(ended, 0) << "a long step";
  signals.answered();
  signals.step_took(0.0);
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(ended, 0) << "it is answered";
}

// After the signal is answered too: the last save may hang.
TEST(Fault4Signals, ASaveThatHangsEndsTheProcess) {
  const auto stuck = [](StopSignals::Work work) {
    StopSignals signals;
    signals.end_unanswered([](int signal) { _exit(128 + signal); }, milliseconds(10));
    {
      const StopSignals::Unhurried first(signals, StopSignals::Work::save);
    }
    raise(SIGTERM);
    signals.answered();
    const StopSignals::Unhurried second(signals, work);
    std::this_thread::sleep_for(std::chrono::seconds(20));
  };
  for (const auto work : {StopSignals::Work::save, StopSignals::Work::async_save})
    EXPECT_EXIT(stuck(work), testing::ExitedWithCode(128 + SIGTERM), "");
}

TEST(Fault4Signals, ASaveHasThreeTimesTheLongestBeforeIt) {
  std::atomic<int> ended = 0;
  StopSignals signals;
  signals.end_unanswered([&ended](int signal) { ended = signal; }, milliseconds(20));
  {
    const StopSignals::Unhurried first(signals, StopSignals::Work::save);
    std::this_thread::sleep_for(milliseconds(300));
  }
  raise(SIGINT);
  signals.answered();
  const StopSignals::Unhurried second(signals, StopSignals::Work::save);
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_EQ(ended, 0);
}

}  // namespace
}  // namespace teratron
