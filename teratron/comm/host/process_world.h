// Ranks as separate processes.
#pragma once

#include <functional>
#include <memory>

#include "teratron/comm/communicator.h"
#include "teratron/comm/host/process_backend.h"

namespace teratron {

/// A World of CPU tensors.
std::unique_ptr<World> process_world(std::shared_ptr<ProcessBackend> backend);

/// Runs `body`, then tells the peers that this rank has finished or, if it threw, why and with which exit
/// code it failed.
void run_as_process(ProcessBackend& backend, const std::function<void()>& body);

}  // namespace teratron
