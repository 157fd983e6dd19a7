// Collectives on bytes for what concerns few ranks: nothing is sent to ranks that do not need it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "teratron/comm/host/host_group.h"

namespace teratron {

/// On rank 0 every rank's bytes, by rank; empty on the others.
std::vector<std::string> gather_bytes(HostGroup& group, const std::string& bytes);
/// Rank 0's bytes, on every rank.
std::string broadcast_from_rank_0(HostGroup& group, const std::string& bytes);

/// Bytes for (or from) some ranks.
using RankBytes = std::map<int64_t, std::string>;
/// Delivers parts[r] to rank r, which may be the caller; returns what each rank sent to this one. Ranks may
/// send to any number of others.
RankBytes exchange_bytes(HostGroup& group, const RankBytes& parts);

}  // namespace teratron
