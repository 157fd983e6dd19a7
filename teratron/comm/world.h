// Joins the job that a launcher started and runs the program as one of its ranks.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

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

class ProcessBackend;

/// This process as a rank of its job, for a program whose work is not one function.
class JoinedWorld {
 public:
  /// UserError(config) for Backend::threads, whose ranks only run_world() can run.
  JoinedWorld(const LaunchEnv& env, const WorldOptions& options);
  /// As finish(), unless it failed.
  ~JoinedWorld();
  JoinedWorld(const JoinedWorld&) = delete;
  JoinedWorld& operator=(const JoinedWorld&) = delete;

  World& world() { return *world_; }
  /// Tells the other ranks that this one has come to its end. Nothing may use the world afterwards.
  void finish();
  /// Fails the job, on all ranks, with this reason and exit code.
  void fail(const std::string& reason, ExitCode code);

 private:
  std::shared_ptr<ProcessBackend> ranks_;  // null: a single rank
  std::unique_ptr<World> world_;
  bool ended_ = false;
};

}  // namespace teratron
