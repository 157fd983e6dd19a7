// Rendezvous over real sockets: ranks that are missing, wrong or strangers.
#include "teratron/comm/rendezvous/rendezvous.h"

#include <atomic>
#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "teratron/comm/transport/socket_transport.h"
#include "teratron/testing/sockets.h"

namespace teratron {
namespace {

using namespace std::chrono_literals;

TEST(Rendezvous, NamesMissingRanks) {
  const FileDescriptor free = listen_on("127.0.0.1", 0);
  const int port = port_of(free);
  const LaunchEnv first{.size = 3, .master_address = "localhost", .master_port = port};
  const auto busy = fault_of([&] { join_rendezvous(first, std::chrono::milliseconds(300)); });
  EXPECT_NE(busy.find(fmt::format("cannot listen on 127.0.0.1:{}: Address already in use", port)),
            std::string::npos)
      << busy;

  LaunchEnv alone{.size = 3, .master_address = "127.0.0.1", .master_port = 0};
  FileDescriptor listener = listen_on("127.0.0.1", 0);
  alone.master_port = port_of(listener);
  alone.store_listen_fd = listener.release();
  const auto missing =
      fault_of([&] { join_rendezvous(alone, std::chrono::milliseconds(300))->meet("here"); });
  EXPECT_NE(missing.find(
                fmt::format("ranks 1, 2 of 3 did not join at 127.0.0.1:{} within 0.3 s", alone.master_port)),
            std::string::npos)
      << missing;
}

/// The error of each rank when `others` join rank 0 of three.
std::vector<std::string> errors_at_start(std::vector<LaunchEnv> others) {
  FileDescriptor listener = listen_on("127.0.0.1", 0);
  const int port = port_of(listener);
  others.insert(others.begin(), LaunchEnv{.size = 3, .store_listen_fd = listener.release()});
  std::vector<std::string> errors(others.size());
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < others.size(); ++i) {
    ranks.emplace_back([&, env = others[i], i]() mutable {
      env.master_address = "127.0.0.1";
      env.master_port = port;
      try {
        join_rendezvous(env, std::chrono::seconds(20))->meet(fmt::format("i am {}", i));
      } catch (const std::exception& error) {
        errors[i] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

TEST(Rendezvous, ReportsInconsistentStartsOnAllRanks) {
  for (const std::string& error : errors_at_start({{.rank = 1, .size = 3}, {.rank = 2, .size = 4}})) {
    EXPECT_EQ(
        error,
        "ranks: rank 2 was started as one of 4 ranks, rank 0 as one of 3. Start all machines with the same "
        "--nnodes and --nproc-per-node, each with a different --node-rank.");
  }
  for (const std::string& error : errors_at_start({{.rank = 1, .size = 3}, {.rank = 1, .size = 3}})) {
    EXPECT_NE(error.find("rank 1 of 3 was started twice"), std::string::npos) << error;
  }
}

/// Another program uses the port: one that never answers, and one that closes connections.
TEST(Rendezvous, NamesTheAddressOfAnotherProgram) {
  const FileDescriptor silent = listen_on("127.0.0.1", 0);
  LaunchEnv second{.rank = 1, .size = 2, .master_address = "127.0.0.1", .master_port = port_of(silent)};
  const auto expect_fault = [&] {
    testing::internal::CaptureStderr();
    const std::string fault = fault_of([&] { join_rendezvous(second, std::chrono::milliseconds(300)); });
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    EXPECT_NE(fault.find(fmt::format("the program at 127.0.0.1:{} did not answer rank 1 as rank 0 would "
                                     "within 0.3 s. Check MASTER_ADDR and MASTER_PORT",
                                     second.master_port)),
              std::string::npos)
        << fault;
  };
  expect_fault();
  const FileDescriptor closing = listen_on("127.0.0.1", 0);
  second.master_port = port_of(closing);
  std::atomic<bool> done = false;
  std::thread stranger([&] {
    while (!done) {
      pollfd polled{closing.get(), POLLIN, 0};
      if (poll(&polled, 1, 50) > 0) close(accept(closing.get(), nullptr, nullptr));
    }
  });
  expect_fault();
  done = true;
  stranger.join();
}

TEST(Rendezvous, NamesTheAddressWhereNothingListens) {
  int port = 0;
  {
    const FileDescriptor closed = listen_on("127.0.0.1", 0);
    port = port_of(closed);
  }
  const LaunchEnv second{.rank = 1, .size = 2, .master_address = "127.0.0.1", .master_port = port};
  const auto refused = fault_of([&] { join_rendezvous(second, std::chrono::milliseconds(300)); });
  EXPECT_NE(refused.find(fmt::format("rank 1 could not connect to 127.0.0.1:{}", port)), std::string::npos)
      << refused;
  const LaunchEnv nowhere{
      .rank = 1, .size = 2, .master_address = "no-such-host.invalid", .master_port = port};
  const auto unknown = fault_of([&] { join_rendezvous(nowhere, std::chrono::milliseconds(300)); });
  EXPECT_NE(unknown.find("MASTER_ADDR 'no-such-host.invalid' does not resolve"), std::string::npos)
      << unknown;
}

/// As behind a firewall: while the queue of a listener is full, the kernel drops what asks for more.
TEST(Rendezvous, AnAddressThatDropsPacketsIsGivenUpInTime) {
  const SilentListener silent;
  const LaunchEnv second{.rank = 1, .size = 2, .master_address = "127.0.0.1", .master_port = silent.port()};
  const auto begin = std::chrono::steady_clock::now();
  const auto fault = fault_of([&] { join_rendezvous(second, 300ms); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s) << "the kernel alone would try for two minutes";
  EXPECT_NE(fault.find(fmt::format(
                "rank 1 could not connect to 127.0.0.1:{}: rank 0 is not there within 0.3 s", silent.port())),
            std::string::npos)
      << fault;
}

/// When ranks have met, rank 0 has the texts of all, and the others their parent's.
void expect_met(const std::vector<std::string>& results) {
  std::string all;
  for (size_t rank = 0; rank < results.size(); ++rank) all += fmt::format("i am {}; ", rank);
  EXPECT_EQ(results[0], all);
  for (size_t rank = 1; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank], fmt::format("i am {}; ", rank & (rank - 1)));
  }
}

/// The texts that each rank received, or its error; the secrets are by rank.
std::vector<std::string> gathered(const std::vector<std::string>& secrets,
                                  const std::function<void(int port)>& meanwhile,
                                  std::chrono::milliseconds timeout = 20s) {
  FileDescriptor listener = listen_on("127.0.0.1", 0);
  const int port = port_of(listener);
  std::vector<std::string> results(secrets.size());
  std::vector<std::thread> ranks;
  const auto join = [&](size_t rank) {
    LaunchEnv env{.rank = int64_t(rank), .size = int64_t(secrets.size()), .master_address = "127.0.0.1"};
    env.master_port = port;
    env.secret = secrets[rank];
    if (rank == 0) env.store_listen_fd = listener.release();
    try {
      const Meeting meeting = join_rendezvous(env, timeout)->meet(fmt::format("i am {}", rank));
      EXPECT_EQ(meeting.nonce.size(), 32U);
      for (const auto& [other, text] : meeting.texts) results[rank] += text + "; ";
    } catch (const std::exception& error) {
      results[rank] = error.what();
    }
  };
  ranks.emplace_back(join, 0);
  meanwhile(port);
  for (size_t rank = 1; rank < secrets.size(); ++rank) ranks.emplace_back(join, rank);
  for (std::thread& rank : ranks) rank.join();
  return results;
}

const std::string kSecret(32, 's');

TEST(Rendezvous, RankZeroLearnsAllTextsAndOthersThatOfTheirParent) {
  for (const std::string& secret : {std::string(), kSecret}) {
    expect_met(gathered({4, secret}, [](int) {}));
  }
}

/// They stay connected, before and while the ranks join.
TEST(Rendezvous, ConnectionsThatSayNothingDelayNothing) {
  std::vector<FileDescriptor> silent;
  const auto begin = std::chrono::steady_clock::now();
  const auto texts = gathered({3, kSecret}, [&](int port) {
    for (int i = 0; i < 300; ++i) silent.push_back(connect_to("127.0.0.1", port, in(5s)));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s);
  expect_met(texts);
}

TEST(Rendezvous, ATimeoutCountsStrangersAndBlamesTheMissingRanks) {
  FileDescriptor listener = listen_on("127.0.0.1", 0);
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 14; ++i) silent.push_back(connect_to("127.0.0.1", port_of(listener), in(5s)));
  LaunchEnv env{
      .size = 2, .master_address = "127.0.0.1", .master_port = port_of(listener), .secret = kSecret};
  env.store_listen_fd = listener.release();
  const std::string fault = fault_of([&] { join_rendezvous(env, 300ms)->meet("here"); });
  EXPECT_EQ(fault, fmt::format("rank 1 of 2 did not join at 127.0.0.1:{} within 0.3 s. Check MASTER_ADDR and "
                               "MASTER_PORT, and that every rank was started. Other connections to this port "
                               "were refused, from 127.0.0.1: 14 said nothing that a rank says",
                               env.master_port));
}

TEST(Rendezvous, ARankWithAnotherSecretIsRefused) {
  for (const std::string& other : {std::string(32, 'x'), std::string()}) {
    const auto errors = gathered({kSecret, kSecret, other}, [](int) {}, 1s);
    EXPECT_NE(errors[2].find("has another secret than rank 2. Give all machines the same secret, or none"),
              std::string::npos)
        << errors[2];
    for (const int rank : {0, 1}) {
      EXPECT_NE(errors[rank].find("rank 2 of 3 did not join"), std::string::npos) << errors[rank];
      EXPECT_NE(errors[rank].find("1 did not know the job's secret"), std::string::npos) << errors[rank];
    }
  }
}

/// As when its launcher starts it again while the others still wait.
TEST(Rendezvous, ARankThatDiedMayJoinAgain) {
  const auto texts = gathered({3, kSecret}, [](int port) {
    Call call(connect_to("127.0.0.1", port, in(5s)), {.caller = 2, .size = 3}, kSecret);
    ASSERT_EQ(call.greet(in(5s)), Call::Answer::greeted);
    ASSERT_TRUE(call.prove("i am dead", in(5s)));
  });
  expect_met(texts);
}

}  // namespace
}  // namespace teratron
