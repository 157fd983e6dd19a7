// Work on all ranks that succeeds on all or throws on all: a rank that continued alone would wait for the
// others forever.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/comm/host/host_group.h"

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

/// The same in two halves. capture() needs no other rank: the result of `work` or what it threw, as bytes...
std::string capture(const std::function<std::string()>& work);
/// ...on which these agree.
std::string combine_outcomes(const std::string& mine, HostGroup& group, const Combine& combine);
std::string broadcast_outcome(const std::string& mine, HostGroup& group);

}  // namespace teratron
