// Communicator of rank threads: shared memory, two waits per collective, no copy but of the result.
#pragma once

#include <memory>

#include "teratron/comm/communicator.h"
#include "teratron/comm/host/thread_group.h"

namespace teratron {

/// The endpoint of `rank` (in the group); `backend` owns `group`. CPU tensors only.
std::shared_ptr<Communicator> thread_communicator(std::shared_ptr<ThreadBackend> backend, ThreadGroup& group,
                                                  int64_t rank);

}  // namespace teratron
