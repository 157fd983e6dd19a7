// Where the processes of a job find each other: PyTorch's TCPStore at MASTER_ADDR:MASTER_PORT, which rank 0
// opens on that address alone (under torchrun it runs already).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "teratron/comm/launch_env.h"

namespace teratron {

class MeetingPoint {
 public:
  /// Throws Fault when the port is taken, or when rank 0 is not there within `timeout`.
  MeetingPoint(const Launch& launch, std::chrono::milliseconds timeout);
  ~MeetingPoint();

  /// The numeric address of this machine that the other ranks can reach.
  const std::string& own_address() const;
  /// Leaves a text for the others and returns those of all ranks. Throws Fault naming the ranks that are
  /// missing after the timeout.
  std::vector<std::string> exchange(const std::string& own);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace teratron
