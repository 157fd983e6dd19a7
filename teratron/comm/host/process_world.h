// Ranks as processes that send each other messages.
#pragma once

#include <functional>
#include <memory>

#include "teratron/comm/communicator.h"
#include "teratron/comm/host/process_ranks.h"

namespace teratron {

/// A World over CPU tensors.
std::unique_ptr<World> process_world(std::shared_ptr<ProcessRanks> ranks);

/// Runs `body`; tells the peers when it throws (with the exit code of what it threw) or has ended.
void run_as_process(ProcessRanks& ranks, const std::function<void()>& body);

}  // namespace teratron
