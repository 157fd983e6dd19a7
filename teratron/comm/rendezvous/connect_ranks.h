// From a rendezvous to connected ranks.
#pragma once

#include <chrono>
#include <memory>

#include "teratron/comm/launch_env.h"
#include "teratron/comm/rendezvous/rendezvous.h"
#include "teratron/comm/transport/transport.h"

namespace teratron {

/// Listens on the address of LaunchEnv::interface, or else on the one that the route to rank 0 starts from,
/// on a port of LaunchEnv::ports.
/// Meets the other ranks and connects to its neighbours in the tree (connect_sockets()). Rank 0 prints a
/// notice if the machines' restart counts differ. Throws what Rendezvous::meet() and connect_sockets() throw.
std::unique_ptr<Transport> connect_ranks(const LaunchEnv& env, Rendezvous& rendezvous,
                                         std::chrono::milliseconds timeout);

}  // namespace teratron
