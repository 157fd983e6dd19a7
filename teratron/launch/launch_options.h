// What `teratron launch` was asked for: flags, Accelerate's file, and what follows from the machine.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "teratron/comm/launch_env.h"

namespace teratron {

struct LaunchOptions {
  int64_t ranks_here = 1;  // of this machine
  int64_t machines = 1;
  int64_t machine = 0;
  std::string master_address = "127.0.0.1";
  int master_port = 0;  // 0: any that is free
  int64_t max_restarts = 0;
  Backend backend = Backend::processes;
  std::chrono::seconds timeout = std::chrono::minutes(10);  // of ranks that wait for each other
  std::string log_directory;
  std::vector<std::string> command;  // path of the program and its arguments

  int64_t world_size() const { return ranks_here * machines; }
  int64_t first_rank() const { return ranks_here * machine; }
  /// "first_rank() + i"; under threads and mpi one process stands for all.
  bool one_process() const { return backend == Backend::threads || backend == Backend::mpi; }
};

/// Nothing when help was asked for and printed. Throws UserError(config).
std::optional<LaunchOptions> read_launch_options(std::span<const std::string> args);

}  // namespace teratron
