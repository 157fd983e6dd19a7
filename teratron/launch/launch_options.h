// Options of `teratron launch`, from its flags, Accelerate's config file and the machine.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "teratron/comm/launch_env.h"

namespace teratron {

struct LaunchOptions {
  int64_t nproc_per_node = 1;
  int64_t nnodes = 1;
  int64_t node_rank = 0;
  std::string master_address = "127.0.0.1";
  int master_port = 0;             // 0: any free one of `ports`
  std::optional<PortRange> ports;  // of everything that listens
  int64_t max_restarts = 0;
  Backend backend = Backend::processes;
  std::chrono::seconds timeout = std::chrono::minutes(10);  // of collectives
  std::string log_directory;
  std::optional<std::string> save;   // of the command's flags
  std::string name;                  // of the job, in all its restarts
  std::string secret;                // of the job, to authenticate connections between ranks; "": none
  std::vector<std::string> command;  // program path and arguments

  int64_t world_size() const { return nproc_per_node * nnodes; }
  int64_t first_rank() const { return nproc_per_node * node_rank; }
  /// Under threads and mpi the launcher starts one process for all ranks.
  bool single_process() const { return backend == Backend::threads || backend == Backend::mpi; }
};

/// The command that the name of a program stands for (cli/published/published_program.h); nullopt for others.
using ProgramNamer = std::function<std::optional<std::vector<std::string>>(std::span<const std::string>)>;

/// nullopt if --help was printed. A name of a program is its command unless it is an executable file with a
/// slash in its path. Throws UserError(config).
std::optional<LaunchOptions> read_launch_options(std::span<const std::string> args,
                                                 const ProgramNamer& command_of_program);

}  // namespace teratron
