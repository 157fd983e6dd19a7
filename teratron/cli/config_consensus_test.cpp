#include "teratron/cli/config_consensus.h"

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "teratron/comm/communicator.h"
#include "teratron/testing/worlds.h"

namespace teratron {
namespace {

using namespace std::chrono_literals;

/// Waits before each collective but rank 0's, as if this rank had lost its core.
class SlowGroup final : public HostGroup {
 public:
  SlowGroup(HostGroup& inner, std::chrono::milliseconds delay) : inner_(inner), delay_(delay) {}
  int64_t rank() const override { return inner_.rank(); }
  int64_t size() const override { return inner_.size(); }
  void send_bytes(int64_t to, const std::string& bytes) override { inner_.send_bytes(to, bytes); }
  std::string receive_bytes(int64_t from) override { return inner_.receive_bytes(from); }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    std::this_thread::sleep_for(delay_);
    return inner_.all_gather_bytes(bytes);
  }
  std::vector<std::string> gather_bytes(const std::string& bytes) override {
    std::this_thread::sleep_for(delay_);
    return inner_.gather_bytes(bytes);
  }
  std::string broadcast_bytes(const std::string& bytes) override {
    std::this_thread::sleep_for(delay_);
    return inner_.broadcast_bytes(bytes);
  }

 private:
  HostGroup& inner_;
  std::chrono::milliseconds delay_;
};

/// How each rank leaves: "returned CODE" or the message of its exception.
std::vector<std::string> outcomes(int64_t ranks, const std::function<RankConfig(int64_t)>& config_of) {
  std::vector<std::string> outcomes(ranks);
  std::vector<int64_t> all(ranks);
  for (int64_t r = 0; r < ranks; ++r) all[r] = r;
  const auto body = [&](World& world) {
    const auto communicator = world.group(all);
    SlowGroup group(*communicator, world.rank() > 0 ? 50ms : 0ms);
    try {
      const ExitCode code = check_config_consensus(config_of(world.rank()), group);
      outcomes[world.rank()] = "returned " + std::to_string(static_cast<int>(code));
    } catch (const std::exception& error) {
      outcomes[world.rank()] = error.what();
      throw;
    }
  };
  try {
    run_over_sockets(ranks, body);
  } catch (const std::exception&) {
  }
  return outcomes;
}

TEST(ConfigConsensus, OnlyRank0ReportsHoweverLateTheOthersAre) {
  const auto differing = outcomes(4, [](int64_t rank) {
    return RankConfig{.settings = rank == 3 ? R"({"hidden_size": 32})" : R"({"hidden_size": 16})"};
  });
  EXPECT_NE(differing[0].find("hidden_size: ranks 0, 1, 2 have 16, rank 3 has 32"), std::string::npos)
      << differing[0];
  const UserError error = config_error({.what = "tp 3", .where = "tp", .fix = "Use 2"});
  const auto one_rejects = outcomes(4, [&](int64_t rank) {
    return RankConfig{.settings = "{}", .error = rank == 2 ? std::optional(error) : std::nullopt};
  });
  EXPECT_NE(one_rejects[0].find("rank 2 of 4 rejected the settings"), std::string::npos) << one_rejects[0];
  const auto all_reject = outcomes(4, [&](int64_t) { return RankConfig{.settings = "{}", .error = error}; });
  EXPECT_EQ(all_reject[0], error.what());
  for (const auto& outcome : {differing, one_rejects, all_reject}) {
    for (size_t rank = 1; rank < outcome.size(); ++rank) EXPECT_EQ(outcome[rank], "returned 2") << rank;
  }
}

TEST(ConfigConsensus, EqualSettingsAreAccepted) {
  const auto equal = outcomes(3, [](int64_t rank) {
    return RankConfig{.settings = rank == 1 ? R"({"num_threads": 4})" : R"({"num_threads": 2})"};
  });
  for (const std::string& outcome : equal) EXPECT_EQ(outcome, "returned 0");
}

}  // namespace
}  // namespace teratron
