// Rendezvous of a job's processes over PyTorch's TCPStore at MASTER_ADDR:MASTER_PORT. Rank 0 hosts the store,
// on that address only; under torchrun its agent does.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "teratron/comm/launch_env.h"

namespace teratron {

class Rendezvous {
 public:
  /// Throws Fault if the port is in use, or if rank 0 cannot be reached within `timeout`.
  Rendezvous(const LaunchEnv& env, std::chrono::milliseconds timeout);
  ~Rendezvous();

  /// This node's numeric address as reachable by the other ranks.
  const std::string& own_address() const;
  /// Every rank's text, by rank. Throws Fault naming the ranks that are missing after the timeout, and
  /// UserError(config) if the ranks were started inconsistently.
  std::vector<std::string> all_gather(const std::string& text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace teratron
