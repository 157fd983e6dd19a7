// All ranks succeed or all throw: a rank that went on alone would wait for the others for ever.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "teratron/comm/host/host_group.h"

namespace teratron {

/// Every rank runs `work`; returns every rank's result, by rank. When some threw, all throw the same: the
/// problems of all (UserError, DamagedCheckpoint) or the first Fault, with the ranks named where there are
/// several.
std::vector<std::string> on_every_rank(Peers& peers, const std::function<std::string()>& work);

/// Rank 0 runs `work`; all return its result or throw what it threw.
std::string on_rank_0(Peers& peers, const std::function<std::string()>& work);

/// on_every_rank() in two halves, the first of which needs no other rank: what `work` gave or threw...
std::string attempt(const std::function<std::string()>& work);
/// ...and the exchange of all ranks' outcomes. agree_on_rank_0() likewise is half of on_rank_0().
std::vector<std::string> agree_on(const std::string& mine, Peers& peers);
std::string agree_on_rank_0(const std::string& mine, Peers& peers);

}  // namespace teratron
