// A sparse all-to-all: every rank sends bytes to some others, in log2(n) rounds of one message a rank.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "teratron/comm/ranks/host_group.h"

namespace teratron {

/// Bytes for (or from) some ranks.
using RankBytes = std::map<int64_t, std::string>;
/// Delivers parts[r] to rank r, which may be the caller; returns what each rank sent to this one. Bytes are
/// forwarded: a part is sent log2(n) / 2 times on average. Collective. Throws Fault like the group's
/// collectives.
RankBytes exchange_bytes(HostGroup& group, const RankBytes& parts);

}  // namespace teratron
