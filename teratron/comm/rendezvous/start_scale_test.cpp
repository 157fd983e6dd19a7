// What a start of up to 2,048 ranks costs, counted and timed, as threads of this process: the rendezvous of
// all, and their connections along the tree of ranks while there are file descriptors (docs/scaling.md).
#include <cmath>
#include <ctime>
#include <thread>

#include <gtest/gtest.h>

#include "teratron/comm/rendezvous/connect_ranks.h"
#include "teratron/comm/transport/descriptor_limit.h"
#include "teratron/testing/scale/fitted_exponent.h"

namespace teratron {
namespace {

using namespace std::chrono_literals;

double cpu_seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct StartCost {
  double first = 0;    // CPU seconds of rank 0
  double all = 0;      // of all ranks
  double elapsed = 0;  // seconds
};

using Body = std::function<void(const LaunchEnv&)>;

/// Each is started as soon as the machine can.
StartCost cost_of_start(int64_t ranks, const Body& body) {
  FileDescriptor listener = listen_on("127.0.0.1", 0);
  const int port = port_of(listener);
  StartCost cost;
  const double before = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      LaunchEnv env{.rank = rank, .size = ranks, .master_address = "127.0.0.1", .master_port = port};
      env.secret = std::string(32, 's');
      if (rank == 0) env.store_listen_fd = listener.release();
      try {
        body(env);
      } catch (const std::exception& error) {
        ADD_FAILURE() << rank << " of " << ranks << ": " << error.what();
      }
      if (rank == 0) cost.first = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    });
  }
  for (std::thread& thread : threads) thread.join();
  cost.elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  cost.all = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - before;
  return cost;
}

void expect_linear(const std::string& name, const std::vector<int64_t>& sizes, const Body& body) {
  const int64_t limit = raise_descriptor_limit();
  std::vector<double> x, first, all;
  std::string row;
  for (const int64_t ranks : sizes) {
    if (limit < 9 * ranks + 64) continue;
    const StartCost cost = cost_of_start(ranks, body);
    x.push_back(static_cast<double>(ranks));
    first.push_back(cost.first);
    all.push_back(cost.all);
    row += fmt::format("{}: {:.1f} us of rank 0 and {:.1f} us of all a rank, {:.2f} s. ", ranks,
                       1e6 * cost.first / x.back(), 1e6 * cost.all / x.back(), cost.elapsed);
  }
  ASSERT_GE(x.size(), 3U);
  const double of_first = fitted_exponent(x, first), of_all = fitted_exponent(x, all);
  EXPECT_LT(of_first, 1.4) << row;
  EXPECT_LT(of_all, 1.4) << row;
  testing::Test::RecordProperty(name, row + fmt::format("exponents {:.2f}, {:.2f}", of_first, of_all));
}

TEST(StartScale, TheRendezvousIsLinear) {
  expect_linear("rendezvous", {64, 256, 1024, 2048}, [](const LaunchEnv& env) {
    const Meeting meeting = join_rendezvous(env, 60s)->meet("0 127.0.0.1 4711");
    EXPECT_EQ(std::ssize(meeting.texts), env.rank == 0 ? env.size : 1);
  });
}

TEST(StartScale, ConnectingIsLinear) {
  expect_linear("connect", {64, 256, 1024, 2048}, [](const LaunchEnv& env) {
    const auto rendezvous = join_rendezvous(env, 60s);
    const auto transport = connect_ranks(env, *rendezvous, 60s);
    EXPECT_EQ(transport->size(), env.size);
  });
}

}  // namespace
}  // namespace teratron
