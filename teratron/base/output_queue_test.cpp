// Readers that do not read, come back, or go away, over real pipes and a terminal.
#include "teratron/base/output_queue.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

namespace teratron {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Priority = OutputQueue::Priority;

/// A pipe of 4096 bytes, or a terminal.
class OutputQueueTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(pipe2(ends_.data(), O_CLOEXEC), 0);
    ASSERT_EQ(fcntl(writing(), F_SETPIPE_SZ, 4096), 4096);
  }
  void TearDown() override {
    close_reader();
    std::this_thread::sleep_for(20ms);  // the writing thread sees it before the number is used again
    ::close(writing());
  }

  int writing() const { return ends_[1]; }
  void close_reader() {
    if (ends_[0] >= 0) ::close(ends_[0]);
    ends_[0] = -1;
  }
  /// What arrives until there is nothing for `silence`.
  std::string read_all(std::chrono::milliseconds silence = 300ms) const {
    std::string text;
    std::array<char, 65536> buffer;
    pollfd polled{ends_[0], POLLIN, 0};
    while (poll(&polled, 1, static_cast<int>(silence.count())) > 0) {
      const ssize_t got = ::read(ends_[0], buffer.data(), buffer.size());
      if (got <= 0) break;
      text.append(buffer.data(), static_cast<size_t>(got));
    }
    return text;
  }

  std::array<int, 2> ends_{-1, -1};
};

std::string numbered(int number) {
  return "line " + std::to_string(number) + " " + std::string(90, '.') + "\n";
}

TEST_F(OutputQueueTest, WritesEverythingInOrder) {
  OutputQueue queue({});
  std::string expected;
  for (int i = 0; i < 2000; ++i) {
    queue.push(writing(), numbered(i), i % 3 == 0 ? Priority::urgent : Priority::normal);
    expected += numbered(i);
  }
  EXPECT_EQ(read_all(), expected);
  EXPECT_TRUE(queue.flush(1s));
}

TEST_F(OutputQueueTest, AReaderThatDoesNotReadDelaysNothingAndLearnsWhatWasDropped) {
  OutputQueue queue({.max_bytes = 20'000, .elsewhere = "The log has them"});
  constexpr int kLines = 5000;
  const auto begin = Clock::now();
  for (int i = 0; i < kLines; ++i) queue.push(writing(), numbered(i), Priority::normal);
  queue.push(writing(), "an error\n", Priority::urgent);
  EXPECT_LT(Clock::now() - begin, 2s) << "no push waits for the reader";
  EXPECT_FALSE(queue.flush(100ms));
  EXPECT_LT(Clock::now() - begin, 4s);

  const std::string text = read_all();
  const int64_t lines = std::count(text.begin(), text.end(), '\n') - 2;
  std::string expected;
  for (int i = 0; i < lines; ++i) expected += numbered(i);
  EXPECT_GT(lines, 150);
  EXPECT_LT(lines, 300);
  EXPECT_EQ(text, expected + "an error\nnotice: " + std::to_string(kLines - lines) +
                      " lines were dropped here: nothing read this output. The log has them\n");
  queue.push(writing(), "again\n", Priority::normal);
  EXPECT_EQ(read_all(), "again\n");
}

TEST_F(OutputQueueTest, FlushWaitsForASlowReader) {
  OutputQueue queue({});
  std::string expected;
  for (int i = 0; i < 100; ++i) {
    queue.push(writing(), numbered(i), Priority::normal);
    expected += numbered(i);
  }
  std::string text;
  std::thread reader([&] {
    std::array<char, 4096> buffer;
    while (text.size() < expected.size()) {
      std::this_thread::sleep_for(5ms);
      const ssize_t got = ::read(ends_[0], buffer.data(), buffer.size());
      text.append(buffer.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)));
    }
  });
  EXPECT_TRUE(queue.flush(1s));
  reader.join();
  EXPECT_EQ(text, expected);
}

TEST_F(OutputQueueTest, AReaderThatGoesAwayIsReportedOnceAndKillsNothing) {
  std::signal(SIGPIPE, SIG_DFL);
  std::atomic<int> closed = 0;
  OutputQueue queue({.on_closed = [&] { ++closed; }});
  close_reader();
  for (int i = 0; i < 3; ++i) {
    queue.push(writing(), numbered(i), Priority::normal);
    EXPECT_TRUE(queue.flush(2s));
  }
  const auto end = Clock::now() + 5s;
  while (closed == 0 && Clock::now() < end) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(closed, 1);
}

TEST_F(OutputQueueTest, ABarIsDrawnOnlyBetweenWrittenLines) {
  OutputQueue queue({});
  queue.push_if_idle(writing(), "bar");
  EXPECT_EQ(read_all(), "bar");
  queue.push(writing(), std::string(8000, '.') + "\n", Priority::normal);
  queue.push_if_idle(writing(), "bar");
  EXPECT_EQ(read_all(), std::string(8000, '.') + "\n");
}

/// Ctrl-S and Ctrl-Q are these two calls.
TEST(OutputQueueOnATerminal, CtrlSDelaysNothing) {
  int reading = -1, terminal = -1;
  ASSERT_EQ(openpty(&reading, &terminal, nullptr, nullptr, nullptr), 0);
  ASSERT_EQ(tcflow(terminal, TCOOFF), 0);
  OutputQueue queue({.max_bytes = 1000});
  const auto begin = Clock::now();
  for (int i = 0; i < 1000; ++i) queue.push(terminal, numbered(i), Priority::normal);
  EXPECT_FALSE(queue.flush(100ms));
  EXPECT_LT(Clock::now() - begin, 4s);
  ASSERT_EQ(tcflow(terminal, TCOON), 0);
  EXPECT_TRUE(queue.flush(2s));
  std::array<char, 4096> buffer;
  std::string text;
  while (text.find("dropped here") == std::string::npos) {
    const ssize_t got = ::read(reading, buffer.data(), buffer.size());
    ASSERT_GT(got, 0);
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  EXPECT_TRUE(text.starts_with("line 0 ")) << text;
  ::close(terminal);
  ::close(reading);
}

}  // namespace
}  // namespace teratron
