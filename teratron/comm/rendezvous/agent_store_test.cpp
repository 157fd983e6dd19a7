// Starts under torchrun, whose agent hosts the store and keeps it when it starts its ranks again.
#include "teratron/comm/rendezvous/agent_store.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "teratron/comm/ranks/tree.h"

namespace teratron {
namespace {

using namespace std::chrono_literals;

struct Joined {
  Meeting meeting;
  std::string error;
};

class AgentStoreTest : public testing::Test {
 protected:
  AgentStoreTest() {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

  LaunchEnv env(int64_t rank, int64_t size) const {
    LaunchEnv env{.rank = rank, .size = size, .master_address = "127.0.0.1"};
    env.master_port = store_->getPort();
    return env;
  }

  /// Rank 0 comes last, after a while, and gives up first.
  static std::vector<Joined> start(const std::vector<LaunchEnv>& ranks,
                                   std::chrono::milliseconds timeout = 20s, int64_t refusing = -1) {
    std::vector<Joined> joined(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        if (ranks[i].rank == 0) std::this_thread::sleep_for(250ms);
        try {
          const auto limit = timeout + (ranks[i].rank == 0 ? 0s : 2s);
          const bool refuses = ranks[i].rank == refusing;
          joined[i].meeting =
              join_agent_store(ranks[i], limit)
                  ->meet(refuses ? start_refusal("it cannot", "Change it") : fmt::format("i am {}", i));
        } catch (const std::exception& error) {
          joined[i].error = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return joined;
  }

  std::vector<LaunchEnv> ranks(int64_t size) const {
    std::vector<LaunchEnv> all;
    for (int64_t rank = 0; rank < size; ++rank) all.push_back(env(rank, size));
    return all;
  }

  c10::intrusive_ptr<c10d::TCPStore> store_;
};

void expect_met(const std::vector<Joined>& joined) {
  for (size_t rank = 0; rank < joined.size(); ++rank) {
    ASSERT_EQ(joined[rank].error, "") << rank;
    const Meeting& meeting = joined[rank].meeting;
    EXPECT_EQ(meeting.nonce, joined[0].meeting.nonce);
    const auto known = rank == 0 ? joined.size() : 1;
    ASSERT_EQ(meeting.texts.size(), known) << rank;
    for (const auto& [other, text] : meeting.texts) EXPECT_EQ(text, fmt::format("i am {}", other));
    if (rank > 0) {
      EXPECT_TRUE(meeting.texts.contains(tree_parent(static_cast<int64_t>(rank)))) << rank;
    }
  }
}

TEST_F(AgentStoreTest, ARankMakesFewRequestsWhateverTheNumberOfRanks) {
  for (const int64_t size : {2, 16, 5}) {  // one start after the other in one store
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<Joined> joined = start(ranks(size));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    expect_met(joined);
    const auto waits = static_cast<int64_t>(seconds.count() / 0.1) + 1;
    int64_t requests = 0;
    for (const Joined& rank : joined) requests += rank.meeting.store_requests;
    RecordProperty(fmt::format("requests of {}", size),
                   fmt::format("{} in {:.2f} s", requests, seconds.count()));
    for (size_t rank = 0; rank < joined.size(); ++rank) {
      const int64_t texts = rank == 0 ? size : 1;  // that it reads
      EXPECT_LE(joined[rank].meeting.store_requests, 10 + texts + 2 * waits) << rank << " of " << size;
    }
  }
}

// A replaced machine counts its restarts from 0, and comes while the store still has the start before.
TEST_F(AgentStoreTest, RanksThatWereRestartedDifferentNumbersOfTimesMeet) {
  const std::vector<Joined> first = start(ranks(4));
  expect_met(first);
  std::vector<LaunchEnv> again = ranks(4);
  for (const int rank : {0, 1}) again[rank].attempt = "1";
  const std::vector<Joined> second = start(again);
  expect_met(second);
  EXPECT_NE(first[0].meeting.nonce, second[0].meeting.nonce);
}

TEST_F(AgentStoreTest, NamesARankThatDoesNotCome) {
  for (const Joined& rank : start({env(0, 3), env(1, 3)}, 1s))
    EXPECT_NE(rank.error.find("rank 2 of 3 did not join"), std::string::npos) << rank.error;
  const std::string alone = start({env(1, 3)}, 400ms)[0].error;
  EXPECT_NE(alone, "");
}

/// The store still has why the start before ended.
TEST_F(AgentStoreTest, AStartThatTimedOutDoesNotEndTheNext) {
  for (const Joined& rank : start({env(0, 3), env(1, 3)}, 1s)) EXPECT_NE(rank.error, "");
  const std::vector<Joined> joined = start(ranks(3));
  expect_met(joined);
  for (const Joined& rank : joined) EXPECT_LE(rank.meeting.store_requests, 40);
}

TEST_F(AgentStoreTest, ARankThatFindsOnlyAnOldStartSaysSo) {
  start({env(0, 3), env(1, 3)}, 1s);
  const std::string late = start({env(2, 3)}, 300ms)[0].error;
  EXPECT_NE(late.find("rank 2 found a start that was over (rank 2 of 3 did not join"), std::string::npos)
      << late;
  EXPECT_NE(late.find("and rank 0 began no other"), std::string::npos) << late;
  expect_met(start(ranks(2)));
  const std::string other = start({env(1, 2)}, 300ms)[0].error;
  EXPECT_NE(other.find("rank 1 found a start that was over (all had met)"), std::string::npos) << other;
}

// A rank that comes after rank 0 has refused gets the reason.
TEST_F(AgentStoreTest, ARankThatComesAfterARefusedStartGetsTheReason) {
  EXPECT_NE(start({env(0, 3), env(1, 3)}, 20s, /*refusing=*/0)[0].error, "");
  const auto begin = std::chrono::steady_clock::now();
  const std::string late = start({env(2, 3)}, 4s)[0].error;
  EXPECT_NE(late.find("it cannot"), std::string::npos) << late;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s) << "before the time-out";
  expect_met(start(ranks(3)));
}

// The start before was killed, here: waits for a rank that does not come.
TEST_F(AgentStoreTest, AStartWithoutAnOutcomeDoesNotEndTheNext) {
  std::thread killed([this] { start({env(0, 3)}, 8s); });
  std::this_thread::sleep_for(500ms);
  start({env(2, 3)}, 0ms);
  std::vector<Joined> joined(3);
  const auto later = [&](int64_t rank, std::chrono::milliseconds pause) {
    return std::thread([this, &joined, rank, pause] {
      std::this_thread::sleep_for(pause);
      joined[rank] = start({env(rank, 3)})[0];
    });
  };
  std::thread second = later(2, 0ms), zeroth = later(0, 0ms), first = later(1, 2500ms);
  for (std::thread* thread : {&second, &zeroth, &first, &killed}) thread->join();
  for (const Joined& rank : joined) {
    EXPECT_EQ(rank.error, "");
    EXPECT_EQ(rank.meeting.nonce, joined[0].meeting.nonce);
  }
}

TEST_F(AgentStoreTest, ARankThatCannotStartTellsAll) {
  for (const int64_t refusing : {0, 2}) {
    for (const Joined& rank : start(ranks(3), 20s, refusing))
      EXPECT_EQ(rank.error, "ranks: it cannot. Change it.") << refusing;
  }
}

TEST_F(AgentStoreTest, ReportsInconsistentStartsOnAllRanks) {
  for (const Joined& rank : start({env(0, 3), env(1, 3), env(2, 4)}))
    EXPECT_NE(rank.error.find("rank 2 was started as one of 4 ranks, rank 0 as one of 3"), std::string::npos)
        << rank.error;
  for (const Joined& rank : start({env(0, 3), env(1, 3), env(1, 3)}, 4s))
    EXPECT_NE(rank.error.find("rank 1 of 3 was started twice"), std::string::npos) << rank.error;
}

TEST_F(AgentStoreTest, RefusesValuesOfOthers) {
  std::vector<LaunchEnv> all = ranks(2);
  for (LaunchEnv& rank : all) rank.secret = std::string(32, 's');
  expect_met(start(all));
  all[1].secret = std::string(32, 'x');
  EXPECT_NE(start(all, 1s)[1].error.find("not from a rank with this job's secret"), std::string::npos);
}

}  // namespace
}  // namespace teratron
