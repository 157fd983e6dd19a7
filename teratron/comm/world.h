// Joins the job that a launcher started and runs the program as one of its ranks.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "teratron/base/error.h"
#include "teratron/comm/communicator.h"
#include "teratron/comm/launch_env.h"

namespace teratron {

struct WorldOptions {
  /// For start-up, and for collectives unless `timeout_after_start` is set.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  std::optional<std::chrono::milliseconds> timeout_after_start = {};
  /// This process's GPU; nullopt: ranks compute on CPUs.
  std::optional<int> gpu = {};
  /// Required with a GPU. Called by the NCCL watchdog on its own thread when the job has failed but this rank
  /// does not exit, possibly stuck in a CUDA call. Must end the process.
  std::function<void(const Fault&)> on_hang = {};
};

/// TERATRON_BACKEND, else NCCL on GPUs, MPI if mpirun or srun started the job and MPI can be loaded, else
/// sockets. Throws UserError(config) if the requested backend cannot serve the device.
Backend choose_backend(const LaunchEnv& env, const WorldOptions& options);

/// Runs `body` as this process's rank; under Backend::threads, as all ranks. If the body throws, the other
/// ranks fail with the same exit code, and the exception is rethrown.
void run_world(const LaunchEnv& env, const WorldOptions& options, const std::function<void(World&)>& body);

}  // namespace teratron
