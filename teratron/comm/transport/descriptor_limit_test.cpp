// What happens when file descriptors run out: a message, and neither waiting nor busy loops.
#include "teratron/comm/transport/descriptor_limit.h"

#include <cerrno>
#include <ctime>
#include <functional>
#include <thread>

#include <gtest/gtest.h>

#include "teratron/comm/host/process_backend.h"
#include "teratron/comm/host/process_group.h"
#include "teratron/comm/transport/greeting.h"
#include "teratron/testing/sockets.h"
#include "teratron/testing/worlds.h"

namespace teratron {
namespace {

using namespace std::chrono_literals;

std::string without_descriptor(const std::string& what, int limit) {
  return fmt::format(
      "no file descriptor for {}: this process may open {}. Raise the hard limit: ulimit -Hn, "
      "LimitNOFILE= of a systemd unit, --ulimit nofile= of a container",
      what, limit);
}

TEST(Descriptors, TheMessageTellsTheProcessFromTheMachine) {
  const std::string process = fault_of([] { check_descriptors(EMFILE, "a file"); });
  EXPECT_EQ(process, without_descriptor("a file", static_cast<int>(raise_descriptor_limit())));
  EXPECT_EQ(fault_of([] { check_descriptors(ENFILE, "a file"); }),
            "no file descriptor for a file: this machine has too many open files (sysctl fs.file-max). Raise "
            "it, or close other programs");
  EXPECT_EQ(fault_of([] { check_descriptors(ECONNREFUSED, "a file"); }), "no fault");
}

TEST(Descriptors, EveryStepOfAStartNamesWhatItNeededOneFor) {
  Reception reception(listen_on("127.0.0.1", 0), {});
  FileDescriptor listener = listen_on("127.0.0.1", 0);
  const int port = port_of(listener);
  const FewDescriptors few;
  EXPECT_EQ(fault_of([] { listen_on("127.0.0.1", 0); }),
            without_descriptor("listening on 127.0.0.1:0", few.limit()));
  EXPECT_EQ(fault_of([] { own_address_towards("127.0.0.1"); }),
            without_descriptor("finding the route to 127.0.0.1", few.limit()));
  EXPECT_EQ(fault_of([&] { connect_to("127.0.0.1", port, in(5s)); }),
            without_descriptor(fmt::format("a connection to 127.0.0.1:{}", port), few.limit()));
  EXPECT_EQ(fault_of([&] { Reception(std::move(listener), {}); }),
            without_descriptor("waiting for connections", few.limit()));
}

TEST(Descriptors, ARankThatCannotAcceptSaysSo) {
  FileDescriptor listener = listen_on("127.0.0.1", 0);
  const int port = port_of(listener);
  Reception reception(std::move(listener), {});
  const FileDescriptor caller = connect_to("127.0.0.1", port, in(5s));
  const FewDescriptors few;
  EXPECT_EQ(fault_of([&] { reception.next(in(1min)); }),
            without_descriptor("a connection from another rank", few.limit()));
}

/// Connections that say nothing give way to one that waits.
TEST(Descriptors, TheOldestSilentConnectionIsClosedForTheNext) {
  FileDescriptor listener = listen_on("127.0.0.1", 0);
  const int port = port_of(listener);
  Reception reception(std::move(listener), {});
  const FileDescriptor first = connect_to("127.0.0.1", port, in(5s));
  const FileDescriptor second = connect_to("127.0.0.1", port, in(5s));
  const FewDescriptors few(1);
  EXPECT_FALSE(reception.next(in(200ms)));
  char byte = 0;
  EXPECT_EQ(recv(first.get(), &byte, 1, MSG_DONTWAIT), 0) << "closed";
  EXPECT_EQ(recv(second.get(), &byte, 1, MSG_DONTWAIT), -1) << "open";
}

/// A job of four ranks in this process, of which 1 and 3 are not neighbours in the tree. What they report if
/// one sends to the other while only `spare` descriptors can be opened.
void expect_fault_of_all(int spare, int64_t failing, const std::string& what) {
  std::vector<std::unique_ptr<ProcessBackend>> ranks;
  for (auto& transport : connected_transports(4)) {
    ranks.push_back(std::make_unique<ProcessBackend>(std::move(transport), 1min));
  }
  const FewDescriptors few(spare);
  std::thread other([&] { fault_of([&] { ranks[3]->group({1, 3})->receive(0, {.operation = "bytes"}); }); });
  fault_of([&] { ranks[1]->group({1, 3})->send(1, {.operation = "bytes"}, {}); });
  const SteadyTime limit = in(50s);
  for (const auto& rank : ranks) {
    while (!rank->failure() && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(rank->failure()) << "before the time-out";
    EXPECT_EQ(rank->failure()->exit_code(), ExitCode::retryable);
    const std::string reason = rank->failure()->what();
    EXPECT_TRUE(reason.starts_with(fmt::format("rank {} failed: no file descriptor for {}", failing, what)))
        << reason;
    EXPECT_NE(reason.find(fmt::format("this process may open {}. Raise the hard limit", few.limit())),
              std::string::npos)
        << reason;
  }
  other.join();
  // What needs a descriptor still waits for one.
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(500ms);
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 4) << "a busy loop";
  std::vector<std::thread> ends;  // each gives the failing rank a head start
  for (auto& rank : ranks) ends.emplace_back([&rank] { rank.reset(); });
  for (std::thread& end : ends) end.join();
}

TEST(Descriptors, ARunningRankThatCannotCallFailsTheJob) {
  expect_fault_of_all(0, 1, "a connection to 127.0.0.1:");
}

TEST(Descriptors, ARunningRankThatCannotAcceptFailsTheJob) {
  expect_fault_of_all(1, 3, "a connection from another rank");
}

}  // namespace
}  // namespace teratron
