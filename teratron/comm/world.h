// The world that a program runs in: whatever launcher started it, it gets its World here.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "teratron/base/error.h"
#include "teratron/comm/communicator.h"
#include "teratron/comm/launch_env.h"

namespace teratron {

struct WorldOptions {
  /// How long ranks wait for each other, to begin with and in every collective.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// For collectives, if it is another.
  std::optional<std::chrono::milliseconds> timeout_after_start = {};
  /// The GPU of this process; nothing: ranks compute on CPUs.
  std::optional<int> gpu = {};
  /// With a GPU: the job failed while this rank may be stuck in its GPU's queue, from which nothing gets it
  /// out. Called on a thread of the world; ends the process.
  std::function<void(const Fault&)> on_stuck = {};
};

/// What carries the messages: what TERATRON_BACKEND asks for, else NCCL on GPUs, MPI under mpirun or srun
/// where it can be loaded, and sockets. Throws UserError(config) where what is asked for cannot be.
Backend choose_backend(const Launch& launch, const WorldOptions& options);

/// Runs `body` as this process's part of the job; under Backend::threads, as all ranks of it. When the body
/// throws, the peers learn it and fail with its exit code, and the exception goes on.
void run_world(const Launch& launch, const WorldOptions& options, const std::function<void(World&)>& body);

}  // namespace teratron
