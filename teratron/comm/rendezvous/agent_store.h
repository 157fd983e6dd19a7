// Rendezvous under torchrun: its agent hosts PyTorch's TCPStore at MASTER_ADDR:MASTER_PORT, and all ranks are
// clients. The store has no access control: with a job secret, values carry an HMAC, and others are an error.
#pragma once

#include <memory>

#include "teratron/comm/rendezvous/rendezvous.h"

namespace teratron {

/// Throws Fault if the store cannot be reached within `timeout`.
std::unique_ptr<Rendezvous> join_agent_store(const LaunchEnv& env, std::chrono::milliseconds timeout);

}  // namespace teratron
