#include "teratron/comm/ranks/rank_exchange.h"

#include <random>

#include <gtest/gtest.h>

#include "teratron/comm/communicator.h"
#include "teratron/testing/worlds.h"

namespace teratron {
namespace {

// What `from` sends to `to` in a round; nothing to most.
std::string part(int64_t from, int64_t to, int64_t round) {
  std::mt19937_64 random(static_cast<uint64_t>(from * 1000003 + to * 1009 + round));
  if (random() % 3 != 0) return "";
  return std::string(random() % 5000, static_cast<char>('a' + random() % 26)) + '\0';
}

void expect_delivered(HostGroup& group) {
  for (int64_t round = 0; round < 5; ++round) {
    RankBytes sent, expected;
    for (int64_t other = 0; other < group.size(); ++other) {
      if (const std::string text = part(group.rank(), other, round); !text.empty()) sent[other] = text;
      if (const std::string text = part(other, group.rank(), round); !text.empty()) expected[other] = text;
    }
    EXPECT_EQ(exchange_bytes(group, sent), expected) << group.rank() << " of " << group.size();
  }
}

TEST(RankExchange, DeliversWhatEveryRankSendsToAny) {
  for (const int64_t ranks : {1, 2, 3, 5, 8, 13}) {
    const auto body = [](World&, Communicator& group) { expect_delivered(group); };
    EXPECT_EQ(fault_over_threads(ranks, body), "no fault") << ranks;
    EXPECT_EQ(fault_over_sockets(ranks, body), "no fault") << ranks;
  }
}

TEST(RankExchange, NamesARankThatDoesNotCome) {
  const std::string fault = fault_over_sockets(3, [](World& world, Communicator& group) {
    if (world.rank() == 1) throw Fault("rank 1 dies here");
    exchange_bytes(group, {{1, "x"}});
  });
  EXPECT_NE(fault.find("rank 1 dies here"), std::string::npos) << fault;
}

TEST(RankExchange, RefusesDamagedMessages) {
  for (const std::string& message :
       {std::string("short"), std::string(24, '\xff'), std::string(24, '\x7f')}) {
    const std::string fault = fault_over_threads(2, [&](World& world, Communicator& group) {
      if (world.rank() == 1) {
        group.send_bytes(0, message);
        group.receive_bytes(0);
      } else {
        exchange_bytes(group, {{1, "x"}});
      }
    });
    EXPECT_NE(fault.find("malformed message"), std::string::npos) << fault;
  }
}

}  // namespace
}  // namespace teratron
