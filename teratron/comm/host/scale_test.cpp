// What agreements of up to 4,096 ranks cost, counted (docs/scaling.md).
#include <cmath>
#include <mutex>

#include <gtest/gtest.h>

#include "teratron/comm/consensus.h"
#include "teratron/testing/counted_ranks.h"

namespace teratron {
namespace {

const std::vector<int64_t> kSizes = {16, 64, 256, 1024, 4096};

/// Of the busiest rank, number by number, and of all ranks.
struct Costs {
  RankCost most = {};
  int64_t messages = 0, bytes = 0;
};

Costs costs_of(int64_t ranks, const std::function<void(HostGroup&)>& body) {
  std::mutex mutex;
  Costs costs;
  run_counted_ranks(ranks, [&](CountedGroup& group) {
    body(group);
    const RankCost cost = group.cost();
    const std::lock_guard lock(mutex);
    costs.most.messages = std::max(costs.most.messages, cost.messages);
    costs.most.rounds = std::max(costs.most.rounds, cost.rounds);
    costs.messages += cost.messages;
    costs.bytes += cost.sent;
  });
  return costs;
}

/// The exponent k of the least-squares fit y = c ranks^k.
double fitted_exponent(const std::vector<int64_t>& values) {
  double mean_x = 0, mean_y = 0, xx = 0, xy = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    mean_x += std::log(static_cast<double>(kSizes[i])) / static_cast<double>(values.size());
    mean_y += std::log(static_cast<double>(values[i])) / static_cast<double>(values.size());
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = std::log(static_cast<double>(kSizes[i])) - mean_x;
    xx += x * x;
    xy += x * (std::log(static_cast<double>(values[i])) - mean_y);
  }
  return xy / xx;
}

/// `sweeps`: how often the agreement goes up or down the tree.
void expect_scales(const std::string& name, int64_t sweeps, const std::function<void(HostGroup&)>& body) {
  std::vector<int64_t> messages, bytes;
  std::string row;
  for (const int64_t ranks : kSizes) {
    const Costs costs = costs_of(ranks, body);
    const auto logarithm = static_cast<int64_t>(std::log2(ranks));
    EXPECT_LE(costs.most.rounds, sweeps * (logarithm + 1)) << name << " of " << ranks;
    EXPECT_LE(costs.most.messages, sweeps * (logarithm + 1)) << name << " of " << ranks;
    EXPECT_EQ(costs.messages, sweeps * (ranks - 1)) << name << " of " << ranks;
    messages.push_back(costs.messages);
    bytes.push_back(costs.bytes);
    row += fmt::format("{}: {} messages, {} bytes in all; {} messages, {} rounds of a rank. ", ranks,
                       costs.messages, costs.bytes, costs.most.messages, costs.most.rounds);
  }
  const double of_messages = fitted_exponent(messages), of_bytes = fitted_exponent(bytes);
  EXPECT_LT(of_messages, 1.05) << name;
  EXPECT_LT(of_bytes, 1.25) << name;  // n log2(n) over these sizes: 1.19
  testing::Test::RecordProperty(name, row + fmt::format("exponents {:.2f}, {:.2f}", of_messages, of_bytes));
}

Record settings(const std::string& odd) {
  Record record;
  for (int i = 0; i < 300; ++i) record.emplace_back(fmt::format("a_setting_{}", i), std::to_string(i));
  record.back().second += odd;
  return record;
}

TEST(Scale, MessagesOfAgreementsGrowWithTheNumberOfRanksAndRoundsWithItsLogarithm) {
  expect_scales("gather", 1, [](HostGroup& group) { group.gather_bytes(std::string(256, 'x')); });
  expect_scales("broadcast", 1, [](HostGroup& group) { group.broadcast_bytes(std::string(256, 'x')); });
  expect_scales("all_true", 2, [](HostGroup& group) { EXPECT_FALSE(all_true(group, group.rank() != 3)); });
  expect_scales("all_reduce_min", 2, [](HostGroup& group) {
    EXPECT_EQ(all_reduce_min(group, 1.0 + static_cast<double>(group.rank())), 1.0);
  });
  expect_scales("first_nonempty", 2, [](HostGroup& group) {
    EXPECT_EQ(first_nonempty(group, group.rank() == 7 ? "seven" : ""), "seven");
  });
  expect_scales("compare_records", 3,
                [](HostGroup& group) { EXPECT_TRUE(compare_records(group, settings("")).empty()); });
  expect_scales("compare_records_that_differ", 4, [](HostGroup& group) {
    EXPECT_EQ(compare_records(group, settings(group.rank() == 5 ? "!" : "")),
              std::vector<std::string>{
                  fmt::format("a_setting_299: ranks 0-4, 6-{} have 299, rank 5 has 299!", group.size() - 1)});
  });
}

}  // namespace
}  // namespace teratron
