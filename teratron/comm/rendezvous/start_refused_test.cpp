// Starts that a rank refuses, and starts after one that failed.
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "teratron/base/environment.h"
#include "teratron/comm/rendezvous/connect_ranks.h"
#include "teratron/comm/transport/interfaces.h"
#include "teratron/testing/sockets.h"

namespace teratron {
namespace {

using namespace std::chrono_literals;

/// What each rank reports; "" if they are connected.
std::vector<std::string> started(std::vector<LaunchEnv> ranks, std::chrono::milliseconds timeout = 20s) {
  FileDescriptor listener = listen_on("127.0.0.1", 0);
  const int port = port_of(listener);
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      LaunchEnv& env = ranks[i];
      env.master_address = "127.0.0.1";
      env.master_port = port;
      if (env.rank == 0) env.store_listen_fd = listener.release();
      try {
        const auto rendezvous = join_rendezvous(env, timeout);
        connect_ranks(env, *rendezvous, timeout);
      } catch (const std::exception& error) {
        errors[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

LaunchEnv rank_of_three(int64_t rank, const std::string& interface = "") {
  LaunchEnv env{.rank = rank, .size = 3};
  env.interface = interface;
  env.interface_variable = "NCCL_SOCKET_IFNAME";
  return env;
}

TEST(StartRefused, AnInterfaceIsChosenByItsName) {
  EXPECT_EQ(address_of_interface("lo"), "127.0.0.1");
  EXPECT_EQ(address_of_interface("no-such"), "");
  EXPECT_EQ(address_of_interface("=lo,eth9"), "127.0.0.1");
  EXPECT_EQ(address_of_interface("=l"), "");
  EXPECT_EQ(address_of_interface("^docker", "127.0.0.1"), "127.0.0.1");
  EXPECT_NE(address_of_interface("^lo", "127.0.0.1"), "127.0.0.1");
  for (const char* choice : {"eth,ib", "=eth0,eth1", "^docker", "^=lo,eth1"})
    EXPECT_TRUE(accepts_interface(choice, "eth0")) << choice;
  for (const char* choice : {"ib", "=eth", "^eth", "^=eth0"})
    EXPECT_FALSE(accepts_interface(choice, "eth0")) << choice;
  const std::vector<std::string> errors =
      started({rank_of_three(0, "lo"), rank_of_three(1), rank_of_three(2, "lo")});
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

TEST(StartRefused, AnInterfaceThatAMachineLacksIsToldToAllRanks) {
  for (const int64_t lacking : {0, 2}) {
    std::vector<LaunchEnv> ranks = {rank_of_three(0), rank_of_three(1), rank_of_three(2)};
    ranks[lacking].interface = "ib7";
    const std::string expected =
        fmt::format("ranks: rank {} of 3 on {} has no interface 'ib7' with an address, but lo (127.0.0.1)",
                    lacking, host_name());
    for (const std::string& error : started(ranks)) {
      EXPECT_TRUE(error.starts_with(expected)) << error;
      EXPECT_TRUE(error.ends_with("Correct NCCL_SOCKET_IFNAME on its machine, or unset it.")) << error;
    }
  }
}

TEST(StartRefused, APortRangeWithoutAFreePortIsToldToAllRanks) {
  const FileDescriptor taken = listen_on("127.0.0.1", 0);
  const int port = port_of(taken);
  std::vector<LaunchEnv> ranks = {rank_of_three(0), rank_of_three(1), rank_of_three(2)};
  ranks[1].ports = PortRange{port, port};
  for (const std::string& error : started(ranks)) {
    EXPECT_NE(error.find(fmt::format("no port from {0} to {0} is free on 127.0.0.1", port)),
              std::string::npos)
        << error;
  }
}

TEST(StartRefused, RanksListenInTheirRange) {
  const PortRange range{21000, 21999};
  for (int i = 0; i < 20; ++i) {
    const FileDescriptor first = listen_in("127.0.0.1", range), second = listen_in("127.0.0.1", range);
    EXPECT_TRUE(range.contains(port_of(first)) && range.contains(port_of(second)));
    EXPECT_NE(port_of(first), port_of(second));
  }
}

/// As when a launcher starts its ranks again, in another order.
TEST(StartRefused, AStartThatTimedOutDoesNotEndTheNext) {
  for (const std::string& error : started({rank_of_three(0), rank_of_three(1)}, 500ms))
    EXPECT_NE(error.find("rank 2 of 3 did not join"), std::string::npos) << error;
  EXPECT_EQ(started({rank_of_three(2), rank_of_three(1), rank_of_three(0)}), std::vector<std::string>(3));
}

}  // namespace
}  // namespace teratron
