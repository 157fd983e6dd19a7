// What it costs to find many ranks that do not answer at once, as when a machine loses its network.
#include <algorithm>
#include <chrono>
#include <future>
#include <numeric>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "teratron/comm/host/process_backend.h"
#include "teratron/comm/host/process_group.h"
#include "teratron/testing/worlds.h"

namespace teratron {
namespace {

using namespace std::chrono_literals;

struct Outcome {
  std::set<std::string> faults = {};  // of the ranks that live
  int64_t messages = 0, most = 0;     // of all ranks, and of one
  double seconds = 0;
};

std::vector<int64_t> successive(int64_t first, int64_t count) {
  std::vector<int64_t> ranks(count);
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

using Wait = std::function<std::string(ProcessBackend&, ProcessGroup&)>;

/// Its messages go along the tree of ranks.
std::string wait_in_barrier(ProcessBackend& backend, ProcessGroup& group) {
  try {
    group.barrier();
  } catch (const Fault&) {
  }
  return backend.failure() ? backend.failure()->what() : "no fault";
}

/// As on a GPU, where nobody knows who is missing.
std::string wait_for_all(ProcessBackend& backend, ProcessGroup& group) {
  const int64_t sequence = group.record({.operation = "all_reduce(sum)"});
  std::this_thread::sleep_for(300ms);
  backend.fail(group.diagnose_timeout("all_reduce", sequence), ExitCode::retryable);
  return backend.failure()->what();
}

/// A job of which some ranks are connected but never say anything.
Outcome outcome_of(int64_t ranks, const std::vector<int64_t>& silent, const Wait& wait) {
  std::vector<std::unique_ptr<Transport>> transports = connected_transports(ranks);
  std::vector<std::unique_ptr<ProcessBackend>> living;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const bool lives = std::find(silent.begin(), silent.end(), rank) == silent.end();
    if (lives) living.push_back(std::make_unique<ProcessBackend>(std::move(transports[rank]), 300ms));
  }
  Outcome outcome;
  std::vector<std::string> faults(living.size());
  std::vector<std::thread> threads;
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < living.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto group = living[i]->group(successive(0, ranks));
      faults[i] = wait(*living[i], *group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  outcome.faults.insert(faults.begin(), faults.end());
  for (const auto& backend : living) {
    const int64_t messages = backend->traffic().messages;
    outcome.messages += messages;
    outcome.most = std::max(outcome.most, messages);
  }
  std::vector<std::thread> ends;  // each gives the failing rank a head start
  for (auto& backend : living) ends.emplace_back([&backend] { backend.reset(); });
  for (std::thread& end : ends) end.join();
  return outcome;
}

int64_t silent_ranks_in(const std::string& fault) {
  const std::string sentence = " does not answer: it is stopped or its node is unreachable";
  int64_t count = 0;
  for (size_t at = 0; (at = fault.find(sentence, at)) != fault.npos; at += sentence.size()) ++count;
  return count;
}

struct Silence {
  std::string name;
  int64_t ranks = 64;
  std::vector<int64_t> silent = {};
  Wait wait = {};
};

std::vector<Silence> silences() {
  std::vector<Silence> all;
  for (const auto& [name, wait] : {std::pair<std::string, Wait>{"in a barrier", wait_in_barrier},
                                   std::pair<std::string, Wait>{"for all", wait_for_all}}) {
    all.push_back({"a machine, " + name, 64, successive(16, 8), wait});
    all.push_back({"half of the ranks, " + name, 64, successive(32, 32), wait});
    // The ranks below it have no other ancestor that could ask.
    all.push_back({"the machine of rank 0, " + name, 64, successive(0, 8), wait});
    all.push_back({"one of four, " + name, 4, {2}, wait});
  }
  return all;
}

/// In all: per rank a handful of messages to an ancestor and with the failure, and the diagnosis.
void expect_bounded(const Silence& tested, const Outcome& outcome) {
  testing::Test::RecordProperty(tested.name, fmt::format("{} messages, {} of a rank, {:.1f} s",
                                                         outcome.messages, outcome.most, outcome.seconds));
  EXPECT_LE(outcome.messages, 20 * tested.ranks) << tested.name;
  EXPECT_LE(outcome.most, 3 * tested.ranks + 32) << tested.name;
  EXPECT_LT(outcome.seconds, 0.3 + 3 + 3 + 6)
      << tested.name << ": as one rank, and once more for those below it";
}

void expect_named(const Silence& tested, const std::string& fault) {
  const std::string text = tested.name + ": " + fault;
  const auto silent = std::ssize(tested.silent);
  EXPECT_EQ(silent_ranks_in(fault), std::min<int64_t>(silent, 8)) << text;
  for (int64_t i = 0; i < std::min<int64_t>(silent, 8); ++i)
    EXPECT_NE(fault.find(fmt::format("rank {} ", tested.silent[i])), fault.npos) << text;
  if (silent > 8) {
    EXPECT_TRUE(fault.ends_with(fmt::format("; and {} others", silent - 8))) << text;
  } else {
    EXPECT_EQ(fault.find("other"), fault.npos) << text;
  }
}

TEST(Diagnosis, OfManySilentRanksEightAreNamedAtABoundedCost) {
  const std::vector<Silence> all = silences();
  std::vector<std::future<Outcome>> outcomes;  // they mostly wait
  for (const Silence& one : all) {
    outcomes.push_back(
        std::async(std::launch::async, [&one] { return outcome_of(one.ranks, one.silent, one.wait); }));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const Outcome outcome = outcomes[i].get();
    const bool one_asks = all[i].silent[0] != 0;
    EXPECT_TRUE(!one_asks || outcome.faults.size() == 1) << all[i].name;
    for (const std::string& fault : outcome.faults) expect_named(all[i], fault);
    expect_bounded(all[i], outcome);
  }
}

}  // namespace
}  // namespace teratron
