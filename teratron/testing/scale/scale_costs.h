// What agreements of up to 4,096 ranks cost, counted (docs/scaling.md).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "teratron/testing/counted_ranks.h"

namespace teratron {

struct JobCosts {
  int64_t ranks = 0;
  RankCost most = {};               // of the busiest rank, number by number
  int64_t messages = 0, bytes = 0;  // of all
};

struct ScaleCosts {
  std::vector<JobCosts> jobs;                // of 16, 64, 256, 1024 and 4096 ranks
  double of_messages = 0.0, of_bytes = 0.0;  // exponents k of the fit y = c ranks^k, of all ranks
  double of_most_bytes = 0.0;                // of the bytes that the busiest rank receives
};

/// Runs `body` on the ranks of each size. The numbers become a property of the running test.
ScaleCosts count_costs(const std::string& name, const std::function<void(HostGroup&)>& body);
/// Counts an agreement that is expected to go `sweeps` times up or down the tree of ranks.
ScaleCosts expect_sweeps(const std::string& name, int64_t sweeps,
                         const std::function<void(HostGroup&)>& body);

}  // namespace teratron
