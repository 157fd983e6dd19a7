// Work on all ranks that succeeds on all or throws on all: a rank that continued alone would wait for the
// others forever.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/comm/ranks/host_group.h"
#include "teratron/comm/ranks/rank_exchange.h"

namespace teratron {

/// Corrupt, incomplete or mixed-up files, as opposed to a checkpoint of another model: an older one may load.
class CorruptCheckpoint : public UserError {
 public:
  explicit CorruptCheckpoint(std::vector<Problem> problems)
      : UserError(ExitCode::checkpoint, std::move(problems)) {}
};

/// Every rank runs `work`. If some throw, all throw the same: the problems of all (UserError,
/// CorruptCheckpoint) or the first Fault, with the ranks named unless all have it.
void run_on_all_ranks(HostGroup& group, const std::function<void()>& work);

/// Rank 0 runs `work`; all return its result or throw what it threw.
std::string run_on_rank_0(HostGroup& group, const std::function<std::string()>& work);

/// Rank 0's part of an agreement: the results of all ranks, by rank.
using Combine = std::function<std::string(const std::vector<std::string>& results)>;
/// Every rank runs `work`, then rank 0 `combine`; all return what that returns, or throw as above.
std::string run_on_all_ranks(HostGroup& group, const std::function<std::string()>& work,
                             const Combine& combine);

/// run_on_all_ranks() in two halves. capture() needs no other rank: the result of `work` or what it threw, as
/// bytes...
std::string capture(const std::function<std::string()>& work);
/// ...on which these agree.
std::string combine_outcomes(const std::string& mine, HostGroup& group, const Combine& combine);
std::string broadcast_outcome(const std::string& mine, HostGroup& group);

/// What a rank does before, between and after messages of all. Once a step has thrown on this rank, it skips
/// the others and its messages are empty, so that no rank waits for it in vain; agree() throws on all ranks.
/// Until then the results on the others may be incomplete. Every step passes the fault point.
class JointSteps {
 public:
  JointSteps(HostGroup& group, std::string_view point) : group_(group), fault_point_(point) {}
  void run(const std::function<void()>& step);
  RankBytes exchange(const RankBytes& parts);
  void agree();
  /// Rank 0 combines the results of all ranks; all return what it made of them.
  std::string agree(const std::string& result, const Combine& combine);

 private:
  HostGroup& group_;
  std::string_view fault_point_;
  std::string outcome_ = "+";
};

}  // namespace teratron
