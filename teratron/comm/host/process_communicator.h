// The Communicator of ranks that are processes, over the messages of ProcessRanks. CPU tensors only.
//
// Sums are those of rank threads to the bit: each element is reduced in rank order by one rank (all ranks
// where tensors are small).
#pragma once

#include <memory>
#include <vector>

#include "teratron/comm/communicator.h"
#include "teratron/comm/host/process_ranks.h"

namespace teratron {

/// The endpoint of this process in `group` (global ranks).
std::shared_ptr<Communicator> process_communicator(std::shared_ptr<ProcessRanks> ranks,
                                                   const std::vector<int64_t>& group);

}  // namespace teratron
