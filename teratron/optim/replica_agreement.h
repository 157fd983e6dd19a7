// Which ranks hold the same tensors. No rank knows all: one rank, found by a hash of the tensor's name,
// compares what the holders of a tensor say about it and answers them (comm/ranks/rank_exchange.h).
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "teratron/comm/ranks/host_group.h"

namespace teratron {

struct HeldTensor {
  std::string name;  // with the index of the part: the same where the values are the same
  std::string form;  // shape and dtype, which must be equal too
};

/// Where a rank of the group is.
struct HolderPlace {
  int64_t rank = 0;      // global
  int64_t stage = 0;     // of its pipeline
  int64_t pipeline = 0;  // number among the group's pipelines
};

struct Holders {
  bool first = true;              // this rank is the first of the group that holds the tensor
  std::set<int64_t> stages = {};  // that hold it
};

struct FoundHolders {
  std::vector<Holders> of;  // by tensor
  std::string problem;      // the first that this rank has found among the tensors it compares; empty: none
};

/// Ranks that hold a tensor must agree on its form. Where several stages hold it, each pipeline that does
/// must hold it in all of them. Collective.
FoundHolders find_holders(HostGroup& group, const HolderPlace& place, const std::vector<HeldTensor>& tensors);

}  // namespace teratron
