// Communicator of ranks in separate processes, over ProcessBackend's messages. CPU tensors only.
//
// Results equal those of rank threads bitwise: each element is reduced in rank order by one rank (small
// tensors: by every rank).
#pragma once

#include <memory>
#include <vector>

#include "teratron/comm/communicator.h"
#include "teratron/comm/host/process_backend.h"

namespace teratron {

/// This process's endpoint of the group of these global ranks.
std::shared_ptr<Communicator> process_communicator(std::shared_ptr<ProcessBackend> backend,
                                                   const std::vector<int64_t>& ranks);

}  // namespace teratron
