#include "teratron/testing/scale/scale_costs.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "teratron/testing/scale/fitted_exponent.h"

namespace teratron {

namespace {

JobCosts costs_of(int64_t ranks, const std::function<void(HostGroup&)>& body) {
  std::mutex mutex;
  JobCosts costs{.ranks = ranks};
  run_counted_ranks(ranks, [&](CountedGroup& group) {
    body(group);
    const RankCost cost = group.cost();
    const std::lock_guard lock(mutex);
    costs.most.messages = std::max(costs.most.messages, cost.messages);
    costs.most.rounds = std::max(costs.most.rounds, cost.rounds);
    costs.most.sent = std::max(costs.most.sent, cost.sent);
    costs.most.received = std::max(costs.most.received, cost.received);
    costs.messages += cost.messages;
    costs.bytes += cost.sent;
  });
  return costs;
}

double exponent_of(const std::vector<JobCosts>& jobs, const std::function<int64_t(const JobCosts&)>& y_of) {
  std::vector<double> x, y;
  for (const JobCosts& job : jobs) {
    x.push_back(static_cast<double>(job.ranks));
    y.push_back(static_cast<double>(y_of(job)));
  }
  return fitted_exponent(x, y);
}

}  // namespace

ScaleCosts count_costs(const std::string& name, const std::function<void(HostGroup&)>& body) {
  ScaleCosts costs;
  std::string row;
  for (const int64_t ranks : {16, 64, 256, 1024, 4096}) {
    const JobCosts& job = costs.jobs.emplace_back(costs_of(ranks, body));
    row += fmt::format("{}: {} messages, {} bytes in all; {} messages, {} rounds, {} + {} bytes of a rank. ",
                       ranks, job.messages, job.bytes, job.most.messages, job.most.rounds, job.most.sent,
                       job.most.received);
  }
  costs.of_messages = exponent_of(costs.jobs, [](const JobCosts& job) { return job.messages; });
  costs.of_bytes = exponent_of(costs.jobs, [](const JobCosts& job) { return job.bytes; });
  costs.of_most_bytes = exponent_of(costs.jobs, [](const JobCosts& job) { return job.most.received; });
  testing::Test::RecordProperty(name, row + fmt::format("exponents {:.2f}, {:.2f}, {:.2f}", costs.of_messages,
                                                        costs.of_bytes, costs.of_most_bytes));
  return costs;
}

ScaleCosts expect_sweeps(const std::string& name, int64_t sweeps,
                         const std::function<void(HostGroup&)>& body) {
  const ScaleCosts costs = count_costs(name, body);
  for (const JobCosts& job : costs.jobs) {
    const auto logarithm = static_cast<int64_t>(std::log2(job.ranks));
    EXPECT_LE(job.most.rounds, sweeps * (logarithm + 1)) << name << " of " << job.ranks;
    EXPECT_LE(job.most.messages, sweeps * (logarithm + 1)) << name << " of " << job.ranks;
    EXPECT_EQ(job.messages, sweeps * (job.ranks - 1)) << name << " of " << job.ranks;
  }
  EXPECT_LT(costs.of_messages, 1.05) << name;
  EXPECT_LT(costs.of_bytes, 1.25) << name;  // n log2(n) over these sizes: 1.19
  return costs;
}

}  // namespace teratron
