// The Communicator of rank threads: shared memory and two waits per collective, no copies besides the result.
#pragma once

#include <memory>

#include "teratron/comm/communicator.h"
#include "teratron/comm/host/thread_group.h"

namespace teratron {

/// The endpoint of `rank` (in the group) of `meeting`, which `home` owns. CPU tensors only.
std::shared_ptr<Communicator> thread_communicator(std::shared_ptr<Rendezvous> home, Meeting& meeting,
                                                  int64_t rank);

}  // namespace teratron
